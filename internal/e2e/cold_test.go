package e2e

import (
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// nearlyApart bounds the distance of log probabilities behind lossy pages of q8_0. The bound is wide:
// a model with random weights passes every error on.
const nearlyApart = 0.25

var (
	lossyLine       = regexp.MustCompile(`msg="kv tier: restored" .* lossy=(\d+)`)
	fingerprintLine = regexp.MustCompile(`msg="kv tier: on" .* fingerprint=([0-9a-f]{12})`)
)

// lossy sums the tokens that were restored from the first lossy page on, since mark.
func (s *server) lossy(mark int) (n int) {
	for _, line := range lossyLine.FindAllStringSubmatch(s.Logs()[mark:], -1) {
		tokens, _ := strconv.Atoi(line[1])
		n += tokens
	}
	return n
}

// kinds returns the names of the exact page files and of the lossy ones below some roots, tails
// included.
func (s *server) kinds(roots ...string) (exact, lossy []string) {
	s.t.Helper()
	short := fingerprintLine.FindStringSubmatch(s.Logs())
	require.NotNil(s.t, short)
	var all []string
	for _, root := range roots {
		found, err := filepath.Glob(filepath.Join(root, "v1", short[1]+"*"))
		require.NoError(s.t, err)
		all = append(all, found...)
	}
	require.NotEmpty(s.t, all)
	fingerprint, err := pagefile.ParseKey(filepath.Base(all[0]))
	require.NoError(s.t, err)
	for _, root := range roots {
		exact = append(exact, names(s.t, filepath.Join(root, "v1", fingerprint.String()))...)
		lossy = append(lossy, names(s.t, filepath.Join(root, "v1", pagefile.ColdFingerprint(fingerprint).String()))...)
	}
	return exact, lossy
}

// names are the names of the pages in a folder, without the folder.
func names(t *testing.T, folder string) (all []string) {
	for _, path := range files(t, folder, ".kvp") {
		all = append(all, filepath.Base(path))
	}
	return all
}

// Pages that move down become lossy. After kill -9 they come back, the answer behind them is near the
// exact one and marked, and nothing behind them is stored. A server without the variable does not
// find them, and exact pages come first where they are stored again.
func TestColdPages(t *testing.T) {
	root, remote := filepath.Join(t.TempDir(), "pages"), remoteDir(t)
	// a page of this model is 0.1 MB: the budget holds one of the conversations
	env := []string{"OLLAMA_KV_TIER_REMOTE=" + remote, "OLLAMA_KV_TIER_LOCAL_GB=0.002", "OLLAMA_KV_TIER_PAGE_TOKENS=64"}
	s := startIn(t, root, append(env, "OLLAMA_KV_TIER_COLD_TYPE=q8_0")...)
	first := prompt(t, 900, 1)
	s.ask(first, 33)
	held := s.ask(first, 33)
	for seed := range int64(3) {
		s.ask(prompt(t, 900, 2+seed), 1)
	}
	s.crash()
	exact, lossy := s.kinds(root, remote)
	require.NotEmpty(t, lossy)
	require.Empty(t, s.fullExact(remote), "no full page is copied as it is")

	mark := s.LogMark()
	got := s.ask(first, 33)
	require.Equal(t, 899, got.restored)
	near := s.lossy(mark)
	require.GreaterOrEqual(t, near, 64)
	requireClose(t, held, got, nearlyApart)
	s.ask(first+" "+prompt(t, 300, 9), 33) // the next turns go on in the slot
	s.ask(first+" "+prompt(t, 300, 9)+" "+prompt(t, 200, 10), 1)
	s.unload()
	after, _ := s.kinds(root, remote)
	require.Subset(t, exact, after, "no exact page follows from lossy ones")

	plain := startIn(t, root, env...)
	computed := plain.ask(first, 33)
	require.LessOrEqual(t, computed.restored, 899-near, "lossy pages are not looked up")
	requireSame(t, held, plain.ask(first, 33), "a server without lossy pages")
	plain.unload()

	mark = s.LogMark()
	got = s.ask(first, 33)
	require.Equal(t, 899, got.restored)
	require.Zero(t, s.lossy(mark), "exact pages come first")
	requireSame(t, held, got, "exact pages")
}

// fullExact are the full exact pages below a root. A tail of a few tokens would not become smaller.
func (s *server) fullExact(root string) []string {
	short := fingerprintLine.FindStringSubmatch(s.Logs())
	require.NotNil(s.t, short)
	found, err := filepath.Glob(filepath.Join(root, "v1", short[1]+"*", "[0-9a-f][0-9a-f]", "*.kvp"))
	require.NoError(s.t, err)
	return found
}

// A model that is loaded again after kill -9 has its latest conversation in memory before
// the first request, and gives the same answer from there.
func TestLatestConversationIsReadAhead(t *testing.T) {
	for _, kind := range []struct{ name, env, into, from string }{
		{"page cache", "OLLAMA_KV_TIER_RAM_GB=0", `into="page cache"`, "from=local"},
		{"decoded", "OLLAMA_KV_TIER_RAM_GB=0.1", "into=memory", "from=ram"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			s := start(t, kind.env, "OLLAMA_KV_TIER_COMPRESS=1")
			text := prompt(t, 3*pageTokens+70, 97)
			s.ask(text, 33)
			held := s.ask(text, 33)

			s.crash()
			mark := s.LogMark()
			s.ask(prompt(t, 20, 98), 1, private)
			require.NoError(t, s.WaitLogFrom(s.context(), mark, "kv tier: read ahead"))
			require.Contains(t, s.Logs()[mark:], kind.into)
			got := s.ask(text, 33)
			require.Equal(t, 3*pageTokens+69, got.restored)
			require.Regexp(t, `kv tier: restored.* `+kind.from, s.Logs()[mark:])
			requireSame(t, held, got, "after reading ahead")
		})
	}
}

// WARM_GB=0 reads nothing ahead.
func TestReadAheadOff(t *testing.T) {
	s := start(t, "OLLAMA_KV_TIER_WARM_GB=0")
	text := prompt(t, 2*pageTokens, 99)
	s.ask(text, 4)
	s.crash()
	require.Equal(t, 2*pageTokens-1, s.ask(text, 4).restored)
	s.unload()
	require.NotContains(t, s.Logs(), "read ahead")
}
