package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/engines"
	"github.com/kvtier/kvtier/internal/remote"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestVerbsOnAnEngine: the verbs about pages see a remote tier that is no directory.
func TestVerbsOnAnEngine(t *testing.T) {
	server, socket := engines.Valkey(t)
	noVariables(t)
	root := t.TempDir()
	t.Setenv(localVar, root)
	t.Setenv(remoteVar, "unix://"+socket+"?prefix=team:")
	c, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	identity := identityOf("qwen")
	for seed := range 4 {
		engine, err := remote.Open(t.Context(), c, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		_, err = putConversation(t.Context(), diskstore.Options{
			Fingerprint: tierenv.Fingerprint(identity), Identity: identity, PageTokens: pageTokens, Local: diskstore.TierConfig{Root: root},
			RemoteTier: engine, ThroughPerDay: 1 << 30, RemoteTimeout: 10 * time.Second,
		}, conversation(seed, 40), false)
		require.NoError(t, err)
	}
	said := func(status int, args ...string) string {
		t.Helper()
		got, out, errs := kvtier(t, args...)
		require.Equal(t, status, got, "%v: %s%s", args, out, errs)
		require.NotContains(t, out+errs, "prefix=team")
		return out + errs
	}
	require.Regexp(t, `root +\S+ +unix://`+socket, said(0, "stat"))
	require.Regexp(t, `disk free +\S.* +-\n`, said(0, "stat", "--remote-gb", "0"))
	require.Contains(t, said(0, "stat", "--remote-gb", "0"), "the engine's own")
	require.Regexp(t, `remote +8 +4 `, said(0, "ls"))
	require.Regexp(t, `remote +8 +4 +12 `, said(0, "check"))

	const budget = 0.0002 // GB
	require.Regexp(t, `remote +[1-9]`, said(0, "gc", "--remote-gb", "0.0002", "--dry-run"))
	require.Regexp(t, `remote +8 +4 +12 `, said(0, "check"))
	said(0, "gc", "--remote-gb", "0.0002", "--json")
	var tiers []tierStat
	require.NoError(t, json.Unmarshal([]byte(said(0, "stat", "--json")), &tiers))
	require.Len(t, tiers, 2)
	require.True(t, tiers[1].Engine)
	require.Positive(t, tiers[1].PageBytes)
	require.LessOrEqual(t, float64(tiers[1].PageBytes), budget*1.05e9)

	require.Contains(t, said(0, "rm", tierenv.Fingerprint(identity).String()[:8]), "keeps quarantined files by its own rules")
	require.Equal(t, "no pages are stored in "+root+" or unix://"+socket+"\n", said(0, "ls"))
	server.Kill()
	require.Contains(t, said(1, "ls"), "no pages are stored in "+root+"\n")
	require.Contains(t, said(1, "stat"), "count the remote tier")
	require.Contains(t, said(exitUnchecked, "check"), "not checked")
}

// TestVerbsOnASealedEngine: without the key of a team its pages are not damaged, and stay where they are.
func TestVerbsOnASealedEngine(t *testing.T) {
	_, socket := engines.Valkey(t)
	noVariables(t)
	root, keys := t.TempDir(), filepath.Join(t.TempDir(), "team.key")
	require.NoError(t, os.WriteFile(keys, bytes.Repeat([]byte("0123456789abcdef"), 4), 0o600))
	t.Setenv(localVar, root)
	t.Setenv(remoteVar, "unix://"+socket)
	t.Setenv(tierenv.KeyFileVariable, keys)
	c, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	engine, err := remote.Open(t.Context(), c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	identity := identityOf("qwen")
	_, err = putConversation(t.Context(), diskstore.Options{
		Fingerprint: tierenv.Fingerprint(identity), Identity: identity, PageTokens: pageTokens, Local: diskstore.TierConfig{Root: root},
		RemoteTier: engine, Remote: diskstore.TierConfig{BudgetBytes: 1 << 30}, ThroughPerDay: 1 << 30, RemoteTimeout: 10 * time.Second,
	}, conversation(1, 40), false)
	require.NoError(t, err)
	status, whole, _ := kvtier(t, "check")
	require.Zero(t, status)
	require.Regexp(t, `remote +2 +1 +3 .* nothing`, whole)

	t.Setenv(tierenv.KeyFileVariable, "")
	for _, verb := range []string{"check", "repair"} {
		status, out, errs := kvtier(t, verb)
		require.Equal(t, exitUnchecked, status, out+errs)
		require.Contains(t, out+errs, "sealed with the key of a team, which OLLAMA_KV_TIER_KEY_FILE has to name")
		require.NotContains(t, out+errs, "damaged")
	}
	status, out, errs := kvtier(t, "gc", "--remote-gb", "0.000001")
	require.Equal(t, 1, status, out+errs)
	require.Contains(t, errs, "the tier is sealed with the key of a team: name its file in OLLAMA_KV_TIER_KEY_FILE")

	t.Setenv(tierenv.KeyFileVariable, keys)
	_, again, _ := kvtier(t, "check")
	require.Equal(t, whole, again)
}
