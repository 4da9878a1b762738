package sealed

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

var (
	ctx  = context.Background()
	used = time.Unix(1_700_000_000, 123)
)

func keyOf(n byte) *key { return newKey(bytes.Repeat([]byte{n}, keyBytes)) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// on returns a tier on a map, sealed with keys.
func on(inner tier.Tier, keys ...*key) *sealedTier {
	return New(inner, keys, quiet()).(*sealedTier)
}

// pattern returns n bytes without a repetition that a chunk could hide.
func pattern(n int) []byte {
	p := make([]byte, 0, n+32)
	for i := 0; len(p) < n; i++ {
		p = fmt.Appendf(p, "row %d, ", i)
	}
	return p[:n]
}

// readAll reads a whole file.
func readAll(tr tier.Tier, name pagefile.Name) ([]byte, error) {
	blob, err := tr.Open(ctx, name, false)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	got := make([]byte, blob.Size())
	return got, pagefile.ReadFull(ctx, blob, got, 0)
}

func TestContract(t *testing.T) {
	tiertest.Contract(t, func(*testing.T) tier.Tier { return on(tiertest.NewMap(), keyOf(1)) })
}

// swapped is a tier whose files are stored with the former key: in front of them is the tier with both keys.
type swapped struct {
	tier.Tier
	former tier.Tier
}

func (s swapped) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	return s.former.Create(ctx, name)
}

func (s swapped) AddBranch(ctx context.Context, b tier.Branch, durable bool) error {
	return s.former.AddBranch(ctx, b, durable)
}

func TestContractWhileRotating(t *testing.T) {
	t.Run("new files", func(t *testing.T) {
		tiertest.Contract(t, func(*testing.T) tier.Tier { return on(tiertest.NewMap(), keyOf(2), keyOf(1)) })
	})
	t.Run("files of the former key", func(t *testing.T) {
		tiertest.Contract(t, func(*testing.T) tier.Tier {
			below := tiertest.NewMap()
			return swapped{on(below, keyOf(2), keyOf(1)), on(below, keyOf(1))}
		})
	})
}

// TestRotation: a new file takes the place of the former key's, and what was stored under both is listed once.
func TestRotation(t *testing.T) {
	below := tiertest.NewMap()
	former, both, later := on(below, keyOf(1)), on(below, keyOf(2), keyOf(1)), on(below, keyOf(2))
	old := tiertest.Upload(t, former, tiertest.Page(1), pattern(100), used)
	tiertest.Upload(t, former, tiertest.Page(2), pattern(200), used)
	tiertest.Upload(t, later, tiertest.Page(3), pattern(300), used)

	infos, err := both.Find(ctx, []pagefile.Name{tiertest.Page(1), tiertest.Page(9), tiertest.Page(3), tiertest.Page(2)}, false)
	require.NoError(t, err)
	require.Equal(t, []int64{100, 0, 300, 200}, []int64{infos[0].Bytes, infos[1].Bytes, infos[2].Bytes, infos[3].Bytes})
	fingerprints, shards, err := both.Survey(ctx)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{tiertest.Fingerprint}, fingerprints)
	require.ElementsMatch(t, []tier.Shard{tier.ShardOf(tiertest.Page(1)), tier.ShardOf(tiertest.Page(2)), tier.ShardOf(tiertest.Page(3))}, shards)

	done := tiertest.Upload(t, both, tiertest.Page(1), pattern(150), used.Add(time.Second))
	require.True(t, done.Replaced)
	require.Equal(t, old.Physical, done.Freed)
	require.Len(t, below.Files, 3)
	removed, err := both.Remove(ctx, old.Info)
	require.ErrorIs(t, err, tier.ErrReplaced)
	require.False(t, removed)

	// A process that has only the former key yet stores the page again.
	tiertest.Upload(t, former, tiertest.Page(1), pattern(100), used)
	infos, err = both.ListShard(ctx, tier.ShardOf(tiertest.Page(1)))
	require.NoError(t, err)
	require.Equal(t, []tier.Info{done.Info}, infos)
	fingerprints, again, err := both.Survey(ctx)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{tiertest.Fingerprint}, fingerprints)
	require.ElementsMatch(t, shards, again)
	got, err := readAll(both, tiertest.Page(1))
	require.NoError(t, err)
	require.Equal(t, pattern(150), got)
	removed, err = both.Remove(ctx, tier.Info{Name: tiertest.Page(1)})
	require.NoError(t, err)
	require.True(t, removed)
	require.Len(t, below.Files, 2, "any file of the name is gone")
}

// exact notes what is removed.
type exact struct {
	tier.Tier
	judged []tier.Info
}

func (e *exact) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	e.judged = append(e.judged, judged)
	return e.Tier.Remove(ctx, judged)
}

// TestNameAlone: a name without more is a name without more below, and a description is that of the sealed file.
func TestNameAlone(t *testing.T) {
	e := &exact{Tier: tiertest.NewMap()}
	tr := on(e, keyOf(1))
	judged := tiertest.Upload(t, tr, tiertest.Page(1), pattern(100), used).Info
	for _, judged := range []tier.Info{judged, {Name: tiertest.Page(1)}} {
		_, err := tr.Remove(ctx, judged)
		require.NoError(t, err)
	}
	judged.Name, judged.Bytes = keyOf(1).name(judged.Name), sealedLen(100)
	require.Equal(t, []tier.Info{judged, {Name: judged.Name}}, e.judged)
}

// TestRotationOfTheLedger: the former key's ledger is read, and written with the current key.
func TestRotationOfTheLedger(t *testing.T) {
	below := tiertest.NewMap()
	add := func(content []byte, _ string) ([]byte, error) { return append(bytes.Clone(content), 'x'), nil }
	for i, keys := range []Keys{{keyOf(1)}, {keyOf(1), keyOf(2)}, {keyOf(2), keyOf(1)}, {keyOf(2)}} {
		content, err := on(below, keys...).Account(ctx, add)
		require.NoError(t, err)
		require.Len(t, content, i+1)
	}
	ledger := bytes.Clone(below.Ledger)
	said := &bytes.Buffer{}
	other := New(below, Keys{keyOf(1)}, slog.New(slog.NewTextHandler(said, nil)))
	_, err := other.Account(ctx, nil)
	require.ErrorIs(t, err, ErrOtherKey)
	_, err = other.Account(ctx, add)
	require.ErrorIs(t, err, ErrOtherKey)
	require.Equal(t, 1, strings.Count(said.String(), "kv tier stores nothing in the remote tier"), said)
	require.Equal(t, ledger, below.Ledger, "another team's ledger stays")
	below.Ledger[len(ledger)-1] ^= 1
	content, err := on(below, keyOf(2)).Account(ctx, add)
	require.NoError(t, err)
	require.Equal(t, "x", string(content), "a damaged ledger is none")
	below.Ledger = []byte(`{"schema":1}`)
	_, err = on(below, keyOf(2)).Account(ctx, nil)
	require.ErrorIs(t, err, ErrOtherKey, "a ledger that is not sealed")
}

// TestLargeLedger: the ledger has chunks, too.
func TestLargeLedger(t *testing.T) {
	k := keyOf(1)
	for _, n := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3 * chunkBytes} {
		sealed := k.sealLedger(pattern(n))
		require.EqualValues(t, sealedLen(int64(n)), len(sealed))
		require.Equal(t, string(pattern(n)), string(k.openLedger(sealed)))
		for _, cut := range []int{1, tagBytes, sealedChunk} {
			require.Empty(t, k.openLedger(sealed[:max(0, len(sealed)-cut)]))
		}
	}
}

// TestWrongKey: a key of another team finds, lists and collects nothing of this one, and says so once.
func TestWrongKey(t *testing.T) {
	below := tiertest.NewMap()
	mine := on(below, keyOf(1))
	names := []pagefile.Name{tiertest.Page(1), tiertest.Tail(2), {Fingerprint: tiertest.Fingerprint, Class: pagefile.ClassManifest}}
	other := pagefile.Name{Fingerprint: pagefile.Key{9}, Key: pagefile.Key{9}}
	for _, name := range append(names, other) {
		tiertest.Upload(t, mine, name, pattern(10), used)
	}
	branch := tier.Branch{Fingerprint: tiertest.Fingerprint, Prefix: pagefile.Key{1}, Key: pagefile.Key{1}, Tokens: 5}
	require.NoError(t, mine.AddBranch(ctx, branch, true))
	var lines strings.Builder
	wrong := New(below, Keys{keyOf(2)}, slog.New(slog.NewTextHandler(&lines, nil)))
	for range 2 {
		infos, err := wrong.Find(ctx, names, false)
		require.NoError(t, err)
		require.Equal(t, make([]tier.Info, len(names)), infos)
		for _, name := range names {
			_, err := wrong.Open(ctx, name, false)
			require.ErrorIs(t, err, tier.ErrNotFound)
		}
		fingerprints, shards, err := wrong.Survey(ctx)
		require.NoError(t, err)
		require.Empty(t, fingerprints)
		require.Empty(t, shards)
		branches, err := wrong.Branches(ctx, branch.Fingerprint, branch.Prefix[:])
		require.NoError(t, err)
		require.Empty(t, branches)
	}
	require.Equal(t, 1, strings.Count(lines.String(), "\n"), "%s", lines.String())
	require.Contains(t, lines.String(), "level=WARN msg=\"kv tier")
	fingerprints, _, err := mine.Survey(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, []pagefile.Key{tiertest.Fingerprint, other.Fingerprint}, fingerprints)
}

// counting counts the files that are opened.
type counting struct {
	tier.Tier
	opened int
	err    error
}

func (c *counting) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	if c.opened++; c.err != nil {
		return nil, c.err
	}
	return c.Tier.Open(ctx, name, anew)
}

// TestSurveyAsksOnce: the key of a fingerprint is read once, and an error of the tier is none of the key.
func TestSurveyAsksOnce(t *testing.T) {
	below := tiertest.NewMap()
	tiertest.Upload(t, on(below, keyOf(1)), tiertest.Tail(1), pattern(10), used)
	tiertest.Upload(t, on(below, keyOf(2)), tiertest.Tail(1), pattern(10), used)
	c := &counting{Tier: below, err: errors.New("unreachable")}
	tr := on(c, keyOf(1))
	_, _, err := tr.Survey(ctx)
	require.ErrorIs(t, err, c.err)
	c.err = nil
	for range 3 {
		fingerprints, _, err := tr.Survey(ctx)
		require.NoError(t, err)
		require.Equal(t, []pagefile.Key{tiertest.Fingerprint}, fingerprints)
	}
	require.Equal(t, 1+4, c.opened, "the first attempt; a manifest and a tail of each fingerprint")
}

// TestManyOwners: a tier remembers the keys of few fingerprints.
func TestManyOwners(t *testing.T) {
	tr := on(tiertest.NewMap(), keyOf(1))
	for i := range maxOwners {
		tr.owners[pagefile.Key{byte(i), byte(i >> 8)}] = nil
	}
	tiertest.Upload(t, tr, tiertest.Page(1), pattern(10), used)
	fingerprints, _, err := tr.Survey(ctx)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{tiertest.Fingerprint}, fingerprints)
	require.LessOrEqual(t, len(tr.owners), maxOwners)
}

// TestEmptyFingerprint: a fingerprint whose files have just gone is asked for its key again.
func TestEmptyFingerprint(t *testing.T) {
	tr := on(vanished{tiertest.NewMap()}, keyOf(1))
	fingerprints, _, err := tr.Survey(ctx)
	require.NoError(t, err)
	require.Empty(t, fingerprints)
	require.Empty(t, tr.owners)
}

// vanished lists a fingerprint without files.
type vanished struct{ tier.Tier }

func (vanished) Survey(context.Context) ([]pagefile.Key, []tier.Shard, error) {
	return []pagefile.Key{{1}}, []tier.Shard{{Fingerprint: pagefile.Key{1}}}, nil
}

// ending leaves out what follows the first missing name, as a look-up may.
type ending struct{ tier.Tier }

func (e ending) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos, err := e.Tier.Find(ctx, names, false)
	if i := slices.IndexFunc(infos, func(i tier.Info) bool { return !i.Found() }); leading && i >= 0 {
		infos = infos[:i]
	}
	return infos, err
}

// TestLeading: with one key the look-up may end, and with two a page of either key may follow.
func TestLeading(t *testing.T) {
	below := ending{tiertest.NewMap()}
	former, both := on(below, keyOf(1)), on(below, keyOf(2), keyOf(1))
	var names []pagefile.Name
	for n := range byte(4) {
		names = append(names, tiertest.Page(n))
	}
	tiertest.Upload(t, former, names[0], pattern(10), used)
	tiertest.Upload(t, both, names[1], pattern(11), used)
	tiertest.Upload(t, former, names[3], pattern(13), used)
	infos, err := tier.Leading(ctx, both, names)
	require.NoError(t, err)
	require.Len(t, infos, 2)
	infos, err = former.Find(ctx, names, true)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, false, false}, []bool{infos[0].Found(), infos[1].Found(), infos[2].Found(), infos[3].Found()})
	infos, err = former.Find(ctx, names, false)
	require.NoError(t, err)
	require.True(t, infos[3].Found())
}

// TestLongChainOfTwoKeys: while there are two keys a look-up of a chain asks as a chain, some times, and finds all pages
// of a conversation that went on after the rotation.
func TestLongChainOfTwoKeys(t *testing.T) {
	below := &asked{Tier: tiertest.NewMap()}
	former, both := on(below, keyOf(1)), on(below, keyOf(2), keyOf(1))
	var names []pagefile.Name
	for n := range byte(40) {
		names = append(names, tiertest.Page(n))
		if by := both; n < 36 {
			if n < 20 {
				by = former
			}
			tiertest.Upload(t, by, names[n], pattern(10), used)
		}
	}
	below.leading, below.all = 0, 0
	infos, err := tier.Leading(ctx, both, names)
	require.NoError(t, err)
	require.Len(t, infos, 36)
	require.Zero(t, below.all)
	require.LessOrEqual(t, below.leading, turnsMost)
	require.True(t, infos[35].Found() && infos[35].Name == names[35])
}

// asked counts look-ups.
type asked struct {
	tier.Tier
	leading, all int
}

func (a *asked) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	if leading {
		a.leading++
	} else {
		a.all++
	}
	return a.Tier.Find(ctx, names, leading)
}

// TestNothingIsPlain: neither content nor names, leads and the ledger are anywhere below, as bytes or as digits.
func TestNothingIsPlain(t *testing.T) {
	below := tiertest.NewMap()
	tr := on(below, keyOf(1))
	random := func(n byte) (k pagefile.Key) {
		copy(k[:], derive([]byte{n}, nil, "a key of the test", keyBytes))
		return k
	}
	fingerprint, pages, prefix := random(1), []pagefile.Key{random(2), random(3)}, random(4)
	secrets := [][]byte{[]byte("row 1"), []byte("account"), fingerprint[:], prefix[:]}
	leads := pagefile.Leads(random(5))
	secrets = append(secrets, leads[:])
	for i, k := range pages {
		secrets = append(secrets, k[:])
		name := pagefile.Name{Fingerprint: fingerprint, Class: pagefile.Class(i), Key: k}
		tiertest.Upload(t, tr, name, pattern(chunkBytes+5), used)
		require.NoError(t, tr.AddBranch(ctx, tier.Branch{Fingerprint: fingerprint, Prefix: prefix, Class: name.Class, Key: k, Tokens: 7, Leads: leads}, true))
	}
	tiertest.Upload(t, tr, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest}, pattern(100), used)
	require.NoError(t, tr.AddBranch(ctx, tier.Branch{Fingerprint: fingerprint, Prefix: prefix, Longer: true}, true))
	_, err := tr.Account(ctx, func([]byte, string) ([]byte, error) { return []byte("account"), nil })
	require.NoError(t, err)

	all := bytes.Clone(below.Ledger)
	sealedKeys := make(map[pagefile.Key]bool)
	for name, f := range below.Files {
		all = append(append(append(all, name.Fingerprint[:]...), name.Key[:]...), f.Content...)
		sealedKeys[name.Key] = true
	}
	for b := range below.Noted {
		all = append(append(append(append(all, b.Fingerprint[:]...), b.Prefix[:]...), b.Key[:]...), b.Leads[:]...)
		require.False(t, !b.Longer && sealedKeys[b.Key], "a branch does not tell its page")
	}
	require.Len(t, below.Files, 3)
	require.Len(t, below.Noted, 3)
	for _, secret := range secrets {
		for n := 4; n <= len(secret); n += 4 { // no part of one, either
			require.NotContains(t, string(all), string(secret[n-4:n]))
			require.NotContains(t, string(all), hex.EncodeToString(secret[n-4:n]))
		}
	}
}

// TestSealedTwice: equal files differ when sealed, and have one name.
func TestSealedTwice(t *testing.T) {
	below := tiertest.NewMap()
	tr := on(below, keyOf(1))
	var first []byte
	for i := range 2 {
		tiertest.Upload(t, tr, tiertest.Page(1), pattern(100), used)
		require.Len(t, below.Files, 1)
		content := below.Files[keyOf(1).name(tiertest.Page(1))].Content
		if i > 0 {
			require.NotEqual(t, first[headerBytes-saltBytes:headerBytes], content[headerBytes-saltBytes:headerBytes])
			require.NotEqual(t, first[headerBytes:headerBytes+16], content[headerBytes:headerBytes+16])
		}
		first = content
	}
}
