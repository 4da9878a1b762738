package tierenv

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// TestTenants: each key has the namespace before it.
func TestTenants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	require.NoError(t, os.WriteFile(path, []byte("# keys\nred sk-1\r\n\n\tblue \t sk-2\nred sk-3=/+"), 0o600))
	tierenvtest.Set(t, map[string]string{TenantsVariable: path})
	got, err := TenantsFromEnvironment()
	require.NoError(t, err)
	require.Equal(t, Tenants{sha256.Sum256([]byte("sk-1")): "red", sha256.Sum256([]byte("sk-2")): "blue", sha256.Sum256([]byte("sk-3=/+")): "red"}, got)

	tierenvtest.Set(t, map[string]string{TenantsVariable: ""})
	got, err = TenantsFromEnvironment()
	require.NoError(t, err)
	require.Nil(t, got)
}

// TestBadTenants: an error names the file and the line, and no key.
func TestBadTenants(t *testing.T) {
	folder := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"a key alone":     {"red sk-1\nsecret", "line 2 of "},
		"three words":     {"red secret more", "line 1 of "},
		"a long name":     {strings.Repeat("r", 65) + " secret", "line 1 of "},
		"an odd name":     {"../red secret", "line 1 of "},
		"a mark in front": {"\ufeffred secret", "line 1 of "},
		"no text":         {"red secret\x00", "line 1 of "},
		"other letters":   {"red secrét", "line 1 of "},
		"twice":           {"red secret\nblue secret", "line 2 of "},
		"large":           {strings.Repeat("#secret\n", tenantsMost/8+1), "more than 1048576 bytes"},
	} {
		path := filepath.Join(folder, "tenants")
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		_, err := readTenants(path)
		require.ErrorContains(t, err, c.says, name)
		require.ErrorContains(t, err, path, name)
		require.NotContains(t, err.Error(), "secr", name)
	}
	for _, path := range []string{"tenants", filepath.Join(folder, "none"), folder} {
		_, err := readTenants(path)
		require.ErrorContains(t, err, path)
	}
}

// TestAnyTenants: no text crashes, and what is read has no empty name.
func TestAnyTenants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants")
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune("ab# \t\n\r\x00.é")), rapid.Rune())).Draw(rt, "text")
		require.NoError(rt, os.WriteFile(path, []byte(text), 0o600))
		tenants, err := readTenants(path)
		require.True(rt, err == nil || strings.Contains(err.Error(), path))
		for _, name := range tenants {
			require.Regexp(rt, `^[A-Za-z0-9][A-Za-z0-9._-]*$`, name)
		}
	})
}
