package why

import (
	"maps"
	"slices"
	"strings"
)

// tellable are the fields of an identity whose values are told. Others are digests, or name
// another namespace.
var tellable = map[string]bool{"cache_type": true, "page_tokens": true}

// fieldMax bounds the number of bytes of a value that is told.
const fieldMax = 64

// Differs compares two identities and returns the fields that differ, as in [Other].
func Differs(ours, theirs map[string]string) map[string]string {
	differ := make(map[string]string)
	for _, identity := range []map[string]string{ours, theirs} {
		for field := range identity {
			differ[field] = ""
		}
	}
	for field := range differ {
		switch a, b := ours[field], theirs[field]; {
		case a == b:
			delete(differ, field)
		case tellable[field] && len(a) <= fieldMax && len(b) <= fieldMax:
			differ[field] = b + ", not " + a
		}
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
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
