package why

import (
	"maps"
	"slices"
	"strings"
)

// tellable are the fields of an identity whose values are told. Others are digests, or name
// another namespace.
var tellable = map[string]bool{"cache_type": true, "page_tokens": true}

// Bounds of a text about fields. Manifests come from other people, and package collect refuses a
// report with a longer detail, or with one that could control a terminal.
const (
	fieldMax = 32 // bytes of a name, and of a value that is told
	namesMax = 6  // fields that are named
)

// unnamed stands for fields with names that nobody of ours gave.
const unnamed = "property"

// isWord reports whether a text of a manifest may be told.
func isWord(s string) bool {
	return s != "" && len(s) <= fieldMax && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Differs compares two identities and returns the fields that differ, as in [Other].
func Differs(ours, theirs map[string]string) map[string]string {
	differ := make(map[string]string)
	for _, identity := range []map[string]string{ours, theirs} {
		for field := range identity {
			differ[field] = ""
		}
	}
	strange := false
	for field := range differ {
		switch a, b := ours[field], theirs[field]; {
		case a == b:
			delete(differ, field)
		case !isWord(field):
			delete(differ, field)
			strange = true
		case tellable[field] && isWord(a) && isWord(b):
			differ[field] = b + ", not " + a
		}
	}
	if strange {
		differ[unnamed] = ""
	}
	return differ
}

// fields names the fields that differ, in words and in alphabetical order.
func fields(differ map[string]string) string {
	var names []string
	for _, field := range slices.Sorted(maps.Keys(differ)) {
		name := strings.ReplaceAll(field, "_", " ")
		if values := differ[field]; values != "" {
			name += " (" + values + ")"
		}
		if len(names) == namesMax {
			names = append(names, "and more")
			break
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
