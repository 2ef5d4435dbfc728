package twin

import "strings"

// A twin's token is four bytes of text, whatever the text is; a message of a chat costs
// overhead tokens more. The same text is the same tokens everywhere.
const (
	tokenBytes = 4
	overhead   = 4
)

// tokens cuts a text into tokens.
func tokens(text string) []string {
	out := make([]string, 0, len(text)/tokenBytes+1)
	for len(text) > tokenBytes {
		out = append(out, text[:tokenBytes])
		text = text[tokenBytes:]
	}
	if text != "" {
		out = append(out, text)
	}
	return out
}

// secrets finds what a twin repeats: words joined by hyphens, of which there are two, or one
// and a digit.
func secrets(context string) []string {
	var found []string
	for _, s := range strings.FieldsFunc(context, func(c rune) bool {
		return !(c == '-' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z')
	}) {
		s = strings.Trim(s, "-")
		hyphens := strings.Count(s, "-")
		if len(s) >= 8 && (hyphens > 1 || hyphens == 1 && strings.ContainsAny(s, "0123456789")) {
			found = append(found, s)
		}
	}
	return found
}

// word returns the i-th word, from 0, of what a twin says to a context, with the space in
// front of it. It says the last secret that the context holds, else it counts.
func word(context string, i int) string {
	if all := secrets(context); len(all) > 0 {
		said := []string{"The", " code", " is", " " + all[len(all)-1], "."}
		if i < len(said) {
			return said[i]
		}
		return ""
	}
	names := [...]string{"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
	if i == 0 {
		return names[0]
	}
	return " " + names[i%len(names)]
}

// said returns the first limit words of what a twin says to a context, and whether it came
// to its own end.
func said(context string, limit int) (words []string, ended bool) {
	for i := range limit {
		w := word(context, i)
		if w == "" {
			return words, true
		}
		words = append(words, w)
	}
	return words, word(context, limit) == ""
}
