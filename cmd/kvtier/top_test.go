package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv"
)

// Without an answer, a frame of top says why and keeps the rows of the last one.
func TestTopKeepsItsRows(t *testing.T) {
	at := &storage{config: tierenv.Config{Local: filepath.Join(t.TempDir(), "\x1b[31mnone")}}
	w := &watch{at: at, models: &modelStore{given: t.TempDir(), timeout: &at.timeout}, rows: "the last rows\n"}
	frame := w.frame(t.Context())
	require.Regexp(t, `^kvtier top .*\\u001b\[31mnone  \d\d:\d\d:\d\d\n\n    no server has reported to\s`, frame)
	require.True(t, strings.HasSuffix(frame, "\n\nthe last rows\n"), frame)
	require.NotContains(t, frame, "\x1b")
}
