package main

import (
	"encoding/json"
	"log/slog"
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
