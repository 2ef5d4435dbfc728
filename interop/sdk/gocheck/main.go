// Command gocheck runs the official openai-go module against a running
// Bulkhead: list, complete, chat, stream, leave a stream, and read three
// errors. BASE_URL (with /v1) and API_KEY come from the environment. It prints
// one line for each check and exits 1 at the first that fails.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// The model continues what its context holds: after the second opening comes
// what followed the first.
const (
	model   = "recall"
	opening = "The harbour lamp of Skerry Point is lit "
	rest    = "at a quarter past seven by the keeper."
	record  = opening + rest + "\nNothing else happened on that evening.\n" + opening
)

func main() {
	if err := run(os.Getenv("BASE_URL"), os.Getenv("API_KEY")); err != nil {
		fmt.Fprintln(os.Stderr, "gocheck:", err)
		os.Exit(1)
	}
}

func run(baseURL, key string) error {
	if baseURL == "" || key == "" {
		return errors.New("set BASE_URL and API_KEY")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	client := openai.NewClient(option.WithBaseURL(baseURL), option.WithAPIKey(key), option.WithMaxRetries(0))
	for _, check := range []struct {
		name string
		run  func(context.Context, openai.Client) error
	}{
		{"Models.List", list},
		{"Completions.New", complete},
		{"Chat.Completions.New", chat},
		{"Chat.Completions.NewStreaming", streamPlain},
		{"Chat.Completions.NewStreaming with usage", streamUsage},
		{"a stream that is left, and the next request", leave},
		{"an unknown model is 404", unknownModel},
		{"a wrong key is 401", wrongKey},
		{"more output than the model has is 400", tooLong},
	} {
		if err := check.run(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", check.name, err)
		}
		fmt.Println("ok  openai-go  ", check.name)
	}
	return nil
}

func list(ctx context.Context, client openai.Client) error {
	var ids []string
	pages := client.Models.ListAutoPaging(ctx)
	for pages.Next() {
		ids = append(ids, pages.Current().ID)
	}
	if err := pages.Err(); err != nil {
		return err
	}
	return equal("models", strings.Join(ids, " "), model)
}

func complete(ctx context.Context, client openai.Client) error {
	answer, err := client.Completions.New(ctx, openai.CompletionNewParams{
		Model:       model,
		Prompt:      openai.CompletionNewParamsPromptUnion{OfString: openai.String(record)},
		MaxTokens:   openai.Int(int64(len(rest))),
		Temperature: openai.Float(0),
	})
	if err != nil {
		return err
	}
	if len(answer.Choices) != 1 {
		return fmt.Errorf("%d choices", len(answer.Choices))
	}
	return errors.Join(
		equal("text", answer.Choices[0].Text, rest),
		equal("finish reason", string(answer.Choices[0].FinishReason), "length"),
		checkUsage(answer.Usage),
	)
}

func ask() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:       model,
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage(record)},
		MaxTokens:   openai.Int(int64(len(rest))),
		Temperature: openai.Float(0),
	}
}

func chat(ctx context.Context, client openai.Client) error {
	answer, err := client.Chat.Completions.New(ctx, ask())
	if err != nil {
		return err
	}
	if len(answer.Choices) != 1 {
		return fmt.Errorf("%d choices", len(answer.Choices))
	}
	return errors.Join(
		equal("content", answer.Choices[0].Message.Content, rest),
		equal("role", string(answer.Choices[0].Message.Role), "assistant"),
		equal("finish reason", answer.Choices[0].FinishReason, "length"),
		checkUsage(answer.Usage),
	)
}

func streamPlain(ctx context.Context, client openai.Client) error { return stream(ctx, client, ask()) }

func streamUsage(ctx context.Context, client openai.Client) error {
	params := ask()
	params.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	return stream(ctx, client, params)
}

// stream reads a whole stream. Usage must come exactly if params ask for it.
func stream(ctx context.Context, client openai.Client, params openai.ChatCompletionNewParams) error {
	var text, finish strings.Builder
	var usages []openai.CompletionUsage
	ids := map[string]bool{}
	chunks := client.Chat.Completions.NewStreaming(ctx, params)
	defer chunks.Close()
	for chunks.Next() {
		chunk := chunks.Current()
		ids[chunk.ID] = true
		if chunk.JSON.Usage.Valid() {
			usages = append(usages, chunk.Usage)
		}
		for _, choice := range chunk.Choices {
			text.WriteString(choice.Delta.Content)
			finish.WriteString(choice.FinishReason)
		}
	}
	if err := chunks.Err(); err != nil {
		return err
	}
	wantUsages := 0
	if params.StreamOptions.IncludeUsage.Value {
		wantUsages = 1
	}
	problems := []error{
		equal("text", text.String(), rest),
		equal("finish reasons", finish.String(), "length"),
		equal("ids", fmt.Sprint(len(ids)), "1"),
		equal("usage chunks", fmt.Sprint(len(usages)), fmt.Sprint(wantUsages)),
	}
	for _, u := range usages {
		problems = append(problems, checkUsage(u))
	}
	return errors.Join(problems...)
}

// leave closes a stream after its first chunk. The next request must be whole.
func leave(ctx context.Context, client openai.Client) error {
	chunks := client.Chat.Completions.NewStreaming(ctx, ask())
	if !chunks.Next() {
		return errors.Join(errors.New("no first chunk"), chunks.Err(), chunks.Close())
	}
	if err := chunks.Close(); err != nil {
		return err
	}
	return stream(ctx, client, ask())
}

func unknownModel(ctx context.Context, client openai.Client) error {
	params := ask()
	params.Model = "no-such-model"
	_, err := client.Chat.Completions.New(ctx, params)
	return refused(err, 404)
}

func wrongKey(ctx context.Context, client openai.Client) error {
	_, err := client.Chat.Completions.New(ctx, ask(), option.WithAPIKey("wrong"))
	return refused(err, 401)
}

func tooLong(ctx context.Context, client openai.Client) error {
	params := ask()
	params.MaxTokens = openai.Int(1_000_000_000)
	_, err := client.Chat.Completions.New(ctx, params)
	return refused(err, 400)
}

// refused wants the SDK's own error, with the status, a code and no prompt.
func refused(err error, status int) error {
	var refusal *openai.Error
	switch {
	case err == nil:
		return errors.New("the call succeeded")
	case !errors.As(err, &refusal):
		return fmt.Errorf("not an API error: %w", err)
	case refusal.StatusCode != status:
		return fmt.Errorf("status %d, want %d: %w", refusal.StatusCode, status, err)
	case refusal.Code == "":
		return fmt.Errorf("no code: %w", err)
	case strings.Contains(refusal.Message, record):
		return errors.New("the error repeats the prompt")
	}
	return nil
}

func checkUsage(u openai.CompletionUsage) error {
	if u.PromptTokens < int64(len(record)) {
		return fmt.Errorf("prompt_tokens %d below the prompt's %d bytes", u.PromptTokens, len(record))
	}
	return errors.Join(
		equal("completion_tokens", fmt.Sprint(u.CompletionTokens), fmt.Sprint(len(rest))),
		equal("total_tokens", fmt.Sprint(u.TotalTokens), fmt.Sprint(u.PromptTokens+u.CompletionTokens)),
	)
}

func equal(what, got, want string) error {
	if got != want {
		return fmt.Errorf("%s is %q, want %q", what, got, want)
	}
	return nil
}
