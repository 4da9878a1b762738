package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// hostileText could control a terminal in every known way: escape sequences of seven bits
// and of eight, a bell, a line break, a backspace, a delete, a mark that changes the
// direction of text, a tag, and a byte that is no character.
const hostileText = "\x1b]0;owned\x07\x1b[2J\u009b31m\rfake\nError: none\b\x7f\u202egpj.exe\U000e0041\xff"

// requireHarmless fails when text could control a terminal.
func requireHarmless(t *testing.T, what, text string) {
	t.Helper()
	for i, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			t.Fatalf("%s prints %U at byte %d: %q", what, r, i, text)
		}
	}
	for line := range strings.Lines(text) {
		require.NotEqual(t, "Error: none", strings.TrimRight(line, "\n")[:min(len(line)-1, 11)], "%s prints a line that is not its own:\n%s", what, text)
	}
}

// TestNothingHostileReachesTheTerminal runs every verb on an imported conversation
// whose identity is hostile, and with files of hostile names beside it.
func TestNothingHostileReachesTheTerminal(t *testing.T) {
	dir := t.TempDir()
	noVariables(t)
	root, made := filepath.Join(dir, "root"), filepath.Join(dir, "made")
	identity := map[string]string{
		tierenv.KeySchema: tierenv.Schema, tierenv.KeyWeights: hostileText, tierenv.KeyCacheType: hostileText, hostileText: "value",
		tierenv.KeyEngine: "engine" + hostileText, tierenv.KeyPageTokens: "16",
	}
	for key, value := range identity { // JSON cannot have bytes that are no characters
		delete(identity, key)
		identity[strings.ToValidUTF8(key, "\ufffd")] = strings.ToValidUTF8(value, "\ufffd")
	}
	keys := storeConversation(t, identity, made, "")
	archive := filepath.Join(dir, "chat\x1b[31m.kvx")
	kvtier := func(status int, args ...string) (stdout string) {
		t.Helper()
		got, stdout, stderr := kvtier(t, args...)
		require.Equal(t, status, got, "%v: %s", args, stderr)
		requireHarmless(t, strings.Join(args, " "), stdout)
		requireHarmless(t, strings.Join(args, " "), stderr)
		return stdout
	}
	kvtier(0, "export", "--root", made, "--last", "-o", archive)
	require.NoError(t, os.Mkdir(root, 0o700))
	kvtier(0, "import", "--root", root, archive)
	page, err := pageBelow(root, keys[0])
	require.NoError(t, err)
	require.NotEmpty(t, page)

	for _, args := range [][]string{
		{"ls"}, {"stat"}, {"inspect", keys[0].String()[:12]}, {"inspect", page}, {"inspect", "--verify", page},
		{"gc", "--older-than", "30d", "--dry-run"}, {"rm", "--model", tierenv.Fingerprint(identity).String()[:12], "--dry-run"},
		{"export", "--last", "--force", "-o", archive}, {"import", archive}, {"check"},
	} {
		args = append(args, "--root", root)
		kvtier(0, args...)
		out := kvtier(0, append(args, "--json")...)
		require.True(t, json.Valid([]byte(out)), "%v: %s", args, out)
	}
	var listed []struct{ Identity map[string]string }
	require.NoError(t, json.Unmarshal([]byte(kvtier(0, "ls", "--json", "--root", root)), &listed))
	require.Equal(t, identity, listed[0].Identity, "--json has the identity to the last character")

	// Names of files, in findings and in errors.
	foreign := filepath.Join(root, "v1", hostileText)
	require.NoError(t, os.WriteFile(foreign, nil, 0o600))
	require.NoError(t, os.Truncate(page, 5000))
	require.Contains(t, kvtier(1, "check", "--root", root), `\u001b]0;owned\u0007`)
	require.True(t, json.Valid([]byte(kvtier(1, "check", "--json", "--root", root))))
	kvtier(1, "inspect", filepath.Join(dir, hostileText+".kvp"), "--root", root)
	kvtier(cli.Misused, "inspect", hostileText, "--root", root)
	kvtier(1, "import", foreign, "--root", root)
	kvtier(1, "rm", "--model", hostileText, "--root", root)
	kvtier(1, "ls", "--root", foreign)
	kvtier(cli.Misused, "ls", "--"+hostileText)
	kvtier(0, "repair", "--root", root)
}

func TestPrintableJSONMeansTheSame(t *testing.T) {
	text, err := json.Marshal(map[string]string{"a": hostileText, "b": "\u2028\U000f0000é\u00a0日本"})
	require.NoError(t, err)
	shown := printableJSON(string(text))
	for _, r := range shown {
		require.True(t, unicode.IsPrint(r), "%U", r)
	}
	var before, after map[string]string
	require.NoError(t, json.Unmarshal(text, &before))
	require.NoError(t, json.Unmarshal([]byte(shown), &after))
	require.Equal(t, before, after)
}

// TestPrintable: a prompt may hold characters that control a terminal.
func TestPrintable(t *testing.T) {
	require.Equal(t, "plain, ö\tand\nmore", printable("plain, ö\tand\nmore"))
	require.Equal(t, `\u001b[2J\u0007\u202e`, printable("\x1b[2J\a\u202e"))
	require.Equal(t, "cut \ufffd", printable("cut \xc3"))
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "0.05": 0.05, "100%": 1, "1": 1} {
		got, err := share(text)
		require.NoError(t, err)
		require.InDelta(t, want, got, 1e-9)
	}
	for _, text := range []string{"", "0", "0%", "-5%", "101%", "2", "five", "NaN", "5%%"} {
		_, err := share(text)
		require.ErrorContains(t, err, "is not a share", text)
	}
	for text, want := range map[string]time.Duration{
		"12h": 12 * time.Hour, "30d": 720 * time.Hour, "2w": 336 * time.Hour, "1.5d": 36 * time.Hour,
		"5min": 5 * time.Minute, "45s": 45 * time.Second,
	} {
		got, err := age(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "0d", "-3d", "30", "d", "soon", "1e300d", "NaNd", "0min", "5mo", "5 d", "m", "5D", "5m", "5M", "1.5m", "1h30m"} {
		_, err := age(text)
		require.ErrorContains(t, err, "is not an age", text)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -100: "-100"} {
		require.Equal(t, want, count(n))
	}
	require.Equal(t, "1 page", plural(1, "page"))
	require.Equal(t, "2,000 pages", plural(2000, "page"))
}

// TestVerdict: damage counts more than files that could not be checked.
func TestVerdict(t *testing.T) {
	tier := func(damage, unchecked int, err string) inspect.TierCheck {
		c := inspect.TierCheck{Tier: "local", Damage: damage, Problems: map[inspect.Problem]int{inspect.ProblemUnchecked: unchecked}}
		if err != "" {
			c.Err = errors.New(err)
		}
		return c
	}
	for name, test := range map[string]struct {
		tiers  []inspect.TierCheck
		status int
		says   string
	}{
		"clean":        {[]inspect.TierCheck{tier(0, 0, "")}, 0, ""},
		"damage":       {[]inspect.TierCheck{tier(0, 0, ""), tier(2, 0, "")}, 1, "2 files are damaged"},
		"unchecked":    {[]inspect.TierCheck{tier(0, 1, "")}, exitUnchecked, "1 file could not be checked"},
		"a tier":       {[]inspect.TierCheck{tier(0, 0, ""), tier(0, 0, "it is gone")}, exitUnchecked, "could not be checked: it is gone"},
		"both of them": {[]inspect.TierCheck{tier(1, 3, "")}, 1, "1 file is damaged"},
	} {
		err := checked{Tiers: test.tiers}.verdict(false)
		if test.status == 0 {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, test.says, name)
		var status *cli.Error
		require.Equal(t, test.status == exitUnchecked, errors.As(err, &status), name)
	}
	require.ErrorContains(t, checked{Tiers: []inspect.TierCheck{tier(1, 0, "")}}.verdict(true), "could not be repaired")
}

// TestProgressBars: on a terminal long verbs show their progress, for each tier. The verbs'
// standard output does not change.
func TestProgressBars(t *testing.T) {
	dir := t.TempDir()
	noVariables(t)
	root, remote, file := filepath.Join(dir, "root"), filepath.Join(dir, "remote"), filepath.Join(dir, "chat.kvx")
	storeConversation(t, identityOf("qwen"), root, "")
	require.NoError(t, os.CopyFS(remote, os.DirFS(root)))
	require.NoError(t, os.Chmod(remote, 0o700))
	for what, args := range map[string][]string{
		"checking remote": {"check", "--root", root, "--remote", remote},
		"checking local":  {"repair", "--root", root, "--remote", remote},
		"exporting":       {"export", "--root", root, "--last", "-o", file},
		"measuring":       {"bench", "--root", root, "--gb", "0.01"},
	} {
		status, stdout, stderr := kvtierOn(t, host{terminal: true}, args...)
		require.Zero(t, status, "%s: %s", what, stderr)
		require.Contains(t, stderr, what)
		require.NotContains(t, stdout, what)
		if what == "exporting" {
			args = append(args, "--force")
		}
		status, _, quiet := kvtier(t, append(args, "--json")...)
		require.Zero(t, status)
		require.Empty(t, quiet, "%s: not on a terminal", what)
	}
	status, _, stderr := kvtierOn(t, host{terminal: true}, "import", "--root", filepath.Join(dir, "other"), file)
	require.Zero(t, status)
	require.Contains(t, stderr, "importing")
}
