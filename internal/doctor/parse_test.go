package doctor

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// TestArchitectures compares the list with that of the runner, which this package does not import.
func TestArchitectures(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../kvcache/tiering/architectures.go", nil, 0)
	require.NoError(t, err)
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "architectures" {
			return true
		}
		for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
			name, err := strconv.Unquote(e.(*ast.KeyValueExpr).Key.(*ast.BasicLit).Value)
			require.NoError(t, err)
			names = append(names, name)
		}
		return false
	})
	require.NotEmpty(t, names)
	slices.Sort(names)
	require.Equal(t, names, slices.Sorted(slices.Values(tieredArchitectures)))
}

// TestKnownVariables: every documented variable is known.
func TestKnownVariables(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	found := regexp.MustCompile("`(OLLAMA_(?:KV|PAGED)_[A-Z_]+)`").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.False(t, unknownName(m[1]), m[1])
	}
	for _, name := range []string{"OLLAMA_KV_TIER", "OLLAMA_KV_TIER_LOCAL_BG", "OLLAMA_PAGED_CHUNK"} {
		require.True(t, unknownName(name), name)
	}
	require.False(t, unknownName("OLLAMA_HOST"))
}

// TestSettingsAgree: variables mean the same here as to a server.
func TestSettingsAgree(t *testing.T) {
	for _, set := range []map[string]string{
		{localVar: "/a"},
		{localVar: ` "/a" `, localGBVar: "0.5", remoteVar: "'/b'", remoteGBVar: "7", "OLLAMA_KV_TIER_RAM_GB": "2", "OLLAMA_KV_TIER_WRITE_GB_PER_DAY": "3"},
		{localVar: "/a", instanceVar: "gpu0"},
		{localVar: "/a", localGBVar: "-1"},
		{localVar: "/a", "OLLAMA_KV_TIER_RAM_GB": "many"},
		{localVar: "/a", instanceVar: "../b"},
		{localVar: "a"},
		{localVar: "/a", remoteVar: "b"},
		{localVar: "/a", tieringVar: "perhaps"},
	} {
		tierenvtest.Set(t, set)
		log, _ := tierenvtest.Logger()
		want, err := tierenv.FromEnvironment(log)
		got := settingsOf(set, "")
		if err != nil {
			require.NotEmpty(t, got.fatal, "%v: %v", set, err)
			continue
		}
		require.Empty(t, got.fatal, set)
		require.Equal(t, []any{want.Local, want.Remote, want.LocalBytes, want.RemoteBytes},
			[]any{got.local, got.remote, got.localBytes, got.remoteBytes}, set)
	}
	require.Equal(t, "/home/x/.ollama/kv-cache", settingsOf(nil, "/home/x").local)
}

func TestMounts(t *testing.T) {
	mounts := parseMounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 22 0:50 / /mnt/a\\040b rw,nosuid shared:1 - nfs4 nas:/kv rw,nolock\n32 22 0:51 / /mnt/a\\040b rw - tmpfs none rw\nhalf a line\n")
	require.Len(t, mounts, 3)
	m, ok := mountOf(mounts, "/mnt/a b/pages")
	require.True(t, ok)
	require.Equal(t, "tmpfs", m.fsType, "the last one covers the others")
	m, _ = mountOf(mounts, "/mnt/a bc")
	require.Equal(t, "/", m.point)
	require.True(t, mounts[1].has("nolock"))
	_, ok = mountOf(nil, "/")
	require.False(t, ok)
}

func TestRules(t *testing.T) {
	rules := parseRules("f", "# q /a 1 1 1 1d\nq /tmp 1777 root root 10d\nd /var/b 0755 root root -\nD! /run/c 0755 root root -\nx /tmp/keep\nR /d\nL /e\nv /f 1 1 1 1d extra\n")
	var kinds []string
	for _, r := range rules {
		kinds = append(kinds, r.kind+r.path)
	}
	require.Equal(t, []string{"q/tmp", "D/run/c", "x/tmp/keep", "R/d", "v/f"}, kinds)
}

func TestOpNames(t *testing.T) {
	require.Equal(t, map[string]bool{"MUL_MAT": true, "ROPE": true}, opNames([]byte("MUL_MAT\x00ROPE\x00abc\x00GGML_DEBUG\x00_X_YZ\x00ADD\x00A-BCD\x00TAIL_WITHOUT_ZERO")))
	require.Empty(t, opNames(nil))
}

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{"/a/b-c.d": "/a/b-c.d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "~": "'~'"} {
		require.Equal(t, want, quote(word))
	}
}

func TestWritableByAService(t *testing.T) {
	for _, tc := range []struct {
		system, home, allowed, state, path string
		want                               bool
	}{
		{"", "", "", "", "/var/lib/x", true},
		{"full", "", "", "", "/usr/share/x", false},
		{"full", "", "", "", "/etc/x", false},
		{"yes", "", "", "", "/etc/x", true},
		{"full", "", "", "", "/var/lib/x", true},
		{"strict", "", "", "", "/var/lib/x", false},
		{"strict", "", "-/var/lib/x", "", "/var/lib/x/y", true},
		{"strict", "", "", "kvtier", "/var/lib/kvtier/pages", true},
		{"strict", "", "", "kvtier", "/var/lib/kvtier2", false},
		{"", "yes", "", "", "/home/a/x", false},
		{"", "yes", "/home/a", "", "/home/a/x", false},
		{"", "read-only", "", "", "/root/x", false},
	} {
		s := server{props: map[string]string{"ProtectSystem": tc.system, "ProtectHome": tc.home, "ReadWritePaths": tc.allowed, "StateDirectory": tc.state}}
		require.Equal(t, tc.want, s.writable(tc.path), "%+v", tc)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	require.Len(t, findings(strings.Repeat("y", 100)), findingsMax)
}

// findings are those of a check that finds one for each character.
func findings(text string) []Finding {
	saved := spaceChecks
	defer func() { spaceChecks = saved }()
	spaceChecks = []Check{{ID: "many", Severity: Note, judge: func(*scene) (hits []hit) {
		for range text {
			hits = append(hits, hit{says: "One."})
		}
		return hits
	}}}
	s := new(scene)
	var all []Finding
	for _, f := range s.judge().Findings {
		if f.ID == "many" {
			all = append(all, f)
		}
	}
	return all
}

func TestVariables(t *testing.T) {
	require.Equal(t, map[string]string{"A": "1", "B": "x=y"}, environmentFile("#C=1\n;D=1\n A = 1\nB='x=y'\nnothing\n"))
	require.Equal(t, map[string]string{"A": "1"}, variablesIn("A=1\x00A=2\x00=3\x00x", "\x00"), "the first counts")
}
