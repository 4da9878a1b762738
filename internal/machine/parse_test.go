package machine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMounts(t *testing.T) {
	mounts := parseMounts("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n31 22 0:50 / /mnt/a\\040b rw,nosuid shared:1 - nfs4 nas:/kv rw,nolock\n32 22 0:51 / /mnt/a\\040b rw - tmpfs none rw\nhalf a line\n")
	require.Len(t, mounts, 3)
	m, ok := MountOf(mounts, "/mnt/a b/pages")
	require.True(t, ok)
	require.Equal(t, "tmpfs", m.Type, "the last one covers the others")
	m, _ = MountOf(mounts, "/mnt/a bc")
	require.Equal(t, "/", m.Point)
	require.True(t, slices.Contains(mounts[1].Options, "nolock"))
	_, ok = MountOf(nil, "/")
	require.False(t, ok)
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
		{"", "read-only", "/root/x", "", "/root/x", true},
	} {
		u := Service{Props: map[string]string{"ProtectSystem": tc.system, "ProtectHome": tc.home, "ReadWritePaths": tc.allowed, "StateDirectory": tc.state}}
		require.Equal(t, tc.want, u.Writable(tc.path), "%+v", tc)
	}
}

func TestVariables(t *testing.T) {
	require.Equal(t, map[string]string{"A": "1", "B": "x=y"}, environmentFile("#C=1\n;D=1\n A = 1\nB='x=y'\nnothing\n"))
	require.Equal(t, map[string]string{"A": "1"}, variablesIn([]string{"A=1", "A=2", "=3", "x"}), "the first counts")
}

func TestWords(t *testing.T) {
	require.Equal(t, []string{"A=1", "B=x y", `C="q"`}, Words(`A=1 "B=x y" C=\"q\"`))
	require.Equal(t, []string{`C="`}, Words(`C=\"`))
	require.Empty(t, Words(""))
}

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{"/a/b-c.d": "/a/b-c.d", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "~": "'~'"} {
		require.Equal(t, want, Quote(word))
	}
	for word, want := range map[string]string{"-/a/b": "-/a/b", "-/a b": `"-/a b"`, "A=50%": "A=50%%", `A="\`: `"A=\"\\"`, "": `""`} {
		require.Equal(t, want, InUnit(word))
	}
}
