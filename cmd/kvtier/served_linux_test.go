package main

import (
	"context"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
)

// TestServicesPages: after an installation for a service, its pages are found without a flag.
func TestServicesPages(t *testing.T) {
	dir := t.TempDir()
	service := filepath.Join(dir, "service")
	run := func(args ...string) (int, string) {
		noVariables(t)
		t.Setenv("HOME", filepath.Join(dir, "home"))
		status, stdout, stderr := kvtierOn(t, host{served: func(context.Context) (install.Served, bool) {
			return install.Served{Service: "ollama.service", Variables: map[string]string{
				localVar: service, localGBVar: "7", "OLLAMA_MODELS": filepath.Join(dir, "models"),
			}}, true
		}}, args...)
		return status, stdout + stderr
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "home"), 0o700))

	status, out := run("ls")
	require.Equal(t, 1, status)
	require.Equal(t, "Error: "+service+", the directory of ollama.service, does not exist, so no page is stored yet; give another directory as --root or in OLLAMA_KV_TIER_LOCAL\n", out)

	require.NoError(t, os.MkdirAll(filepath.Join(service, "v1"), 0o700))
	_, out = run("ls")
	require.Equal(t, "no pages are stored in "+service+"\n", out)
	_, out = run("stat")
	require.Regexp(t, `(?m)^budget +7.0 GB|^budget +7 GB`, out)

	// A directory of one's own comes first.
	other := filepath.Join(dir, "other")
	require.NoError(t, os.MkdirAll(filepath.Join(other, "v1"), 0o700))
	_, out = run("ls", "--root", other)
	require.Equal(t, "no pages are stored in "+other+"\n", out)
	own := filepath.Join(dir, "home", ".ollama", "kv-cache")
	require.NoError(t, os.MkdirAll(filepath.Join(own, "v1"), 0o700))
	_, out = run("ls")
	require.Equal(t, "no pages are stored in "+own+"\n", out)
	require.NoError(t, os.RemoveAll(own))

	// Another user is told the command.
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	require.NoError(t, os.Chown(service, 65534, 65534))
	_, out = run("ls", "--json")
	require.Contains(t, out, "; the pages of ollama.service belong to its user, so run "+machine.WithSudo("ls", "--json")+"\n")
	_, out = run("rm", "it's")
	require.Contains(t, out, "so run "+machine.WithSudo("rm")+` 'it'\''s'`+"\n")
	_, out = run("rm", "--root", service, "--", "-s")
	require.Contains(t, out, "or run "+machine.WithSudo("rm", "--root", service, "--", "-s")+"\n")
}

// TestGroupOfTheService: a member of the group is told the command that needs no password, where the group may
// give it.
func TestGroupOfTheService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	service := filepath.Join(t.TempDir(), "service")
	require.NoError(t, os.MkdirAll(filepath.Join(service, "v1"), 0o700))
	require.NoError(t, os.Chown(service, 65534, 65534))
	own, err := user.LookupGroupId("0")
	require.NoError(t, err)
	said := func(group string, args ...string) string {
		noVariables(t)
		t.Setenv("HOME", t.TempDir())
		status, stdout, stderr := kvtierOn(t, host{served: func(context.Context) (install.Served, bool) {
			return install.Served{Service: "ollama.service", Variables: map[string]string{localVar: service}, Group: group, Reads: "sudo -u ann /usr/bin/kvtier"}, true
		}}, args...)
		require.NotZero(t, status)
		return stdout + stderr
	}
	for _, args := range [][]string{{"ls"}, {"stat"}, {"stat", "--json"}} {
		require.Contains(t, said(own.Name, args...), "so run sudo -u ann /usr/bin/kvtier "+strings.Join(args, " ")+"\n")
	}
	require.Contains(t, said(own.Name, "stat", "--prometheus"), "so run "+machine.WithSudo("stat", "--prometheus")+", or without arguments sudo -u ann /usr/bin/kvtier stat\n")
	require.Contains(t, said(own.Name, "check"), "so run "+machine.WithSudo("check")+"\n")
	require.Contains(t, said("no such group", "ls"), "so run "+machine.WithSudo("ls")+"\n")
}
