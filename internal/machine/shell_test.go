package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{"/a/b-c.d": "/a/b-c.d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "~": "'~'"} {
		require.Equal(t, want, Quote(word))
	}
}

func TestInUnit(t *testing.T) {
	for word, want := range map[string]string{"-/a/b": "-/a/b", "-/a b": `"-/a b"`, "A=50%": "A=50%%", `A="\`: `"A=\"\\"`, "": `""`} {
		require.Equal(t, want, InUnit(word))
	}
}
