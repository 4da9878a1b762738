package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestElapsedText(t *testing.T) {
	require.Equal(t, "0.3s", elapsedText(300*time.Millisecond))
	require.Equal(t, "12s", elapsedText(12300*time.Millisecond))
	require.Equal(t, "1m11s", elapsedText(71*time.Second))
}

func TestLiveStep(t *testing.T) {
	s := &liveStep{name: "cmake build", started: time.Now().Add(-32 * time.Second), width: func() int { return 0 }}
	require.Regexp(t, `^cmake build       [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] 32s$`, s.String())
	s.Progress(7, 0)
	require.Regexp(t, `^cmake build       [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] 7 packages 32s$`, s.String())
	s.Progress(30, 120)
	require.Equal(t, "cmake build       ▕"+strings.Repeat("█", 10)+strings.Repeat(" ", 30)+"▏ 30/120 32s", s.String())
	s.End("", nil)
	require.Equal(t, "cmake build       32s", s.String())
	s.End("", errors.New("no"))
	require.Equal(t, "cmake build       failed after 32s", s.String())
}

func TestLiveStepFitsTheTerminal(t *testing.T) {
	s := &liveStep{name: "cmake build", started: time.Now(), width: func() int { return 30 }}
	s.Progress(30, 120)
	require.Len(t, []rune(s.String()), 30)
}
