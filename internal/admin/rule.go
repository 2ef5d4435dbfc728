package admin

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Title says in a few words what a rule of the gateway is.
func Title(rule string) string {
	switch rule {
	case "G-1":
		return "fields and paths of the list only"
	case "G-2":
		return "admission by the engines' limits"
	case "G-3":
		return "both legs agree before the first byte"
	case "G-4":
		return "untouched bytes stay as they are"
	case "G-5":
		return "a stream ends by its own end"
	case "G-6":
		return "who leaves ends both legs"
	case "G-7":
		return "a cache domain for each tenant"
	case "G-8":
		return "answers pass by list"
	case "G-9":
		return "health by a known answer"
	case "G-11":
		return "a hand-off serves one sequence, once"
	case "G-12":
		return "every answer carries our id"
	case "G-13":
		return "models and URLs by name"
	case "G-14":
		return "budgets for whatever clients push"
	case "G-15":
		return "engines, and no router before them"
	}
	return ""
}

// Grants is the YAML that grants fields to tenants.
func Grants(fields map[string][]string) string {
	if len(fields) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("tenants:\n")
	for _, tenant := range slices.Sorted(maps.Keys(fields)) {
		b.WriteString("  - id: " + plain(tenant) + "\n    grants: [" + strings.Join(slices.Sorted(slices.Values(fields[tenant])), ", ") + "]\n")
	}
	return b.String()
}

// plain is a text as YAML takes it for one.
func plain(s string) string {
	for i, r := range s {
		word := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' || i > 0 && (r >= '0' && r <= '9' || r == '-')
		if !word {
			return strconv.Quote(s)
		}
	}
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return strconv.Quote(s)
	}
	return s
}
