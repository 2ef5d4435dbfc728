package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// recorded is one request to an engine and what came, as testdata/ENGINE/BUILD/cases.json
// lists them.
type recorded struct {
	Name    string            `json:"name"`
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Request json.RawMessage   `json:"request,omitempty"`
	Text    *string           `json:"request_text,omitempty"` // a request that is not JSON
	Sent    map[string]string `json:"request_headers,omitempty"`
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers,omitempty"`
	Note    string            `json:"note,omitempty"`
	Body    string            `json:"body"` // file of the answer's body
}

// contract holds an engine to what was recorded of it.
type contract struct {
	dir   string // of cases.json
	base  string // URL of the engine
	alter func([]byte) []byte
	// loose are the cases of which only the status is compared, because the body depends on
	// what happened before.
	loose []string
}

// hold sends every recorded request and compares status and shape: the members and types
// of a JSON body, the shapes of the events of a stream, the names of metrics. With record
// it writes the answers anew. It returns how many were sent, and what differs.
func (d *driver) hold(ctx context.Context, c contract) (sent int, differs []string, err error) {
	file := filepath.Join(c.dir, "cases.json")
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, nil, fmt.Errorf("interop: read recorded answers: %w", err)
	}
	var all []recorded
	if err := json.Unmarshal(data, &all); err != nil {
		return 0, nil, fmt.Errorf("interop: read recorded answers: %w", err)
	}
	for i := range all {
		one := &all[i]
		if one.Method == "" || strings.HasSuffix(one.Body, ".http") {
			continue // raw bytes of a connection: a red-green case
		}
		status, headers, body, err := d.resend(ctx, c.base, one)
		if err != nil {
			return sent, differs, fmt.Errorf("interop: case %s: %w", one.Name, err)
		}
		sent++
		if c.alter != nil {
			body = c.alter(body)
		}
		if d.record {
			if err := one.rewrite(c.dir, status, headers, body); err != nil {
				return sent, differs, err
			}
			continue
		}
		if status != one.Status {
			differs = append(differs, fmt.Sprintf("%s: status %d, recorded %d", one.Name, status, one.Status))
			continue
		}
		if slices.Contains(c.loose, one.Name) {
			continue
		}
		before, err := os.ReadFile(filepath.Join(c.dir, one.Body))
		if err != nil {
			return sent, differs, fmt.Errorf("interop: read recorded answer: %w", err)
		}
		if said := compare(shape(before), shape(body)); said != "" {
			differs = append(differs, one.Name+": "+said)
		}
	}
	if sent == 0 {
		return 0, nil, errors.New("interop: no answer is recorded")
	}
	if d.record {
		return sent, nil, writeCases(file, all)
	}
	return sent, differs, nil
}

// resend sends a recorded request.
func (d *driver) resend(ctx context.Context, base string, one *recorded) (status int, h http.Header, body []byte, err error) {
	var payload []byte
	switch {
	case one.Text != nil:
		payload = []byte(*one.Text)
	case len(one.Request) > 0:
		if payload, err = expand(one.Request); err != nil {
			return 0, nil, nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, one.Method, base+one.Path, bytes.NewReader(payload))
	if err != nil {
		return 0, nil, nil, err
	}
	if one.Text != nil || payload != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, value := range one.Sent {
		request.Header.Set(name, value)
	}
	slow := http.Client{Transport: d.http.Transport}
	response, err := slow.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 8<<20))
	return response.StatusCode, response.Header, body, err
}

// expand writes out texts of the form "@repeat N TEXT".
func expand(request json.RawMessage) ([]byte, error) {
	if !bytes.Contains(request, []byte(`"@repeat `)) {
		return request, nil
	}
	var value any
	if err := json.Unmarshal(request, &value); err != nil {
		return nil, err
	}
	return json.Marshal(expanded(value))
}

func expanded(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name := range v {
			v[name] = expanded(v[name])
		}
	case []any:
		for i := range v {
			v[i] = expanded(v[i])
		}
	case string:
		if rest, ok := strings.CutPrefix(v, "@repeat "); ok {
			if count, text, ok := strings.Cut(rest, " "); ok {
				if n, err := strconv.Atoi(count); err == nil {
					return strings.Repeat(text, n)
				}
			}
		}
	}
	return value
}

// rewrite replaces what was recorded of a case.
func (r *recorded) rewrite(dir string, status int, h http.Header, body []byte) error {
	r.Status, r.Headers = status, map[string]string{}
	for name := range h {
		if name != "Date" && name != "Keep-Alive" {
			r.Headers[name] = h.Get(name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, r.Body), body, 0o644); err != nil {
		return fmt.Errorf("interop: write recorded answer: %w", err)
	}
	return nil
}

// writeCases writes the list, one case a line.
func writeCases(file string, all []recorded) error {
	var b bytes.Buffer
	b.WriteString("[\n")
	for i := range all {
		line, err := json.Marshal(&all[i])
		if err != nil {
			return fmt.Errorf("interop: write recorded answers: %w", err)
		}
		b.WriteString(" ")
		b.Write(line)
		if i < len(all)-1 {
			b.WriteString(",")
		}
		b.WriteString("\n")
	}
	b.WriteString("]\n")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("interop: write recorded answers: %w", err)
	}
	return nil
}

// shape lists the members of a body with their types, without their values.
func shape(body []byte) map[string]bool {
	at := map[string]bool{}
	var value any
	if json.Unmarshal(body, &value) == nil {
		describe(at, "", value)
		return at
	}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		data, event := strings.CutPrefix(line, "data: ")
		switch {
		case event && json.Unmarshal([]byte(data), &value) == nil:
			describe(at, "event", value)
		case event:
			at["event "+data] = true
		case strings.HasPrefix(line, "# TYPE "):
			at[line] = true
		}
	}
	return at
}

func describe(at map[string]bool, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			describe(at, path+"."+name, inner)
		}
		if len(v) == 0 {
			at[path+": object"] = true
		}
	case []any:
		for _, inner := range v {
			describe(at, path+"[]", inner)
		}
		if len(v) == 0 {
			at[path+": list"] = true
		}
	case string:
		at[path+": text"] = true
	case float64:
		at[path+": number"] = true
	case bool:
		at[path+": flag"] = true
	case nil:
		at[path+": null"] = true
	}
}

// compare says what is gone and what is new.
func compare(before, after map[string]bool) string {
	var said []string
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !after[name] {
			said = append(said, "gone "+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if !before[name] {
			said = append(said, "new "+name)
		}
	}
	return strings.Join(said, ", ")
}
