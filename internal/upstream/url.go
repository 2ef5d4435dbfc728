package upstream

import "strings"

// allowedURL says whether a URL of a client's content may be read by an engine (G-13):
// content that it carries itself, or http and https at a listed host. What is odd in any
// way is refused, for engines read URLs in different ways: a user name, a backslash, a
// space, a control character, anything but ASCII, a host that is not spelled as it is
// listed.
func allowedURL(url string, domains []string) bool {
	for i := range len(url) {
		if c := url[i]; c <= ' ' || c >= 0x7f || c == '\\' {
			return false
		}
	}
	if strings.HasPrefix(url, "data:") {
		return true
	}
	rest, standard, ok := "", "", false
	if rest, ok = strings.CutPrefix(url, "https://"); ok {
		standard = ":443"
	} else if rest, ok = strings.CutPrefix(url, "http://"); ok {
		standard = ":80"
	} else {
		return false
	}
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	host := strings.TrimSuffix(rest, standard)
	if host == "" || strings.ContainsAny(host, "@%,;") {
		return false
	}
	for _, d := range domains {
		if host == d {
			return true
		}
	}
	return false
}
