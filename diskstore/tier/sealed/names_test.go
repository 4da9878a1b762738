package sealed

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// anyKey draws keys that are often near to each other.
func anyKey() *rapid.Generator[pagefile.Key] {
	return rapid.Custom(func(t *rapid.T) (k pagefile.Key) {
		if rapid.Bool().Draw(t, "few bits") {
			k[rapid.IntRange(0, len(k)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			return k
		}
		return pagefile.Key(rapid.SliceOfN(rapid.Byte(), len(k), len(k)).Draw(t, "bytes"))
	})
}

func anyBranch() *rapid.Generator[tier.Branch] {
	return rapid.Custom(func(t *rapid.T) tier.Branch {
		b := tier.Branch{Fingerprint: anyKey().Draw(t, "fingerprint"), Prefix: anyKey().Draw(t, "prefix"), Longer: rapid.Bool().Draw(t, "longer")}
		if !b.Longer {
			b.Class, b.Key, b.Tokens = pagefile.Class(rapid.IntRange(0, 1).Draw(t, "class")), anyKey().Draw(t, "key"), rapid.IntRange(1, 1<<31-1).Draw(t, "tokens")
			b.Leads = pagefile.Leads(anyKey().Draw(t, "leads"))
		}
		return b
	})
}

// TestPermutations: names come back, two names stay two, and shards stay shards.
func TestPermutations(t *testing.T) {
	k := keyOf(1)
	rapid.Check(t, func(t *rapid.T) {
		fingerprint, a, b := anyKey().Draw(t, "fingerprint"), anyKey().Draw(t, "a"), anyKey().Draw(t, "b")
		require.Equal(t, a, k.openFingerprint(k.sealFingerprint(a)))
		require.Equal(t, a, k.sealFingerprint(k.openFingerprint(a)))
		require.Equal(t, a == b, k.sealFingerprint(a) == k.sealFingerprint(b))
		n := k.of(fingerprint)
		for _, p := range []*permutation{n.files[0], n.files[1], n.prefixes} {
			require.Equal(t, a, p.open(p.seal(a)))
			require.Equal(t, a, p.seal(p.open(a)))
			require.Equal(t, a == b, p.seal(a) == p.seal(b))
			require.Equal(t, a[0] == b[0], p.seal(a)[0] == p.seal(b)[0])
		}
		one, two := anyBranch().Draw(t, "one"), anyBranch().Draw(t, "two")
		in := k.of(one.Fingerprint)
		require.Equal(t, one, in.openBranch(in.branch(one)))
		require.Equal(t, one.Longer, in.branch(one).Longer)
		require.Equal(t, one == two, in.branch(one) == k.of(two.Fingerprint).branch(two))
	})
}

// TestNamesDiffer: a key has another name in each place, and with each team's key.
func TestNamesDiffer(t *testing.T) {
	seen := make(map[pagefile.Key]string)
	note := func(what string, k pagefile.Key) {
		require.Empty(t, seen[k], "%s is the same", what)
		seen[k] = what
	}
	same := tiertest.Fingerprint
	note("plain", same)
	branch := func(fingerprint pagefile.Key, prefix byte, class pagefile.Class) tier.Branch {
		return tier.Branch{Fingerprint: fingerprint, Prefix: pagefile.Key{prefix}, Class: class, Key: same, Tokens: 1}
	}
	for team := range byte(2) {
		k := keyOf(team)
		note("fingerprint", k.sealFingerprint(same))
		for _, fingerprint := range []pagefile.Key{same, {2}} {
			n := k.of(fingerprint)
			note("page", k.name(pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassPage, Key: same}).Key)
			note("tail", k.name(pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassTail, Key: same}).Key)
			note("prefix", n.prefixes.seal(same))
			for prefix := range byte(2) {
				note("page of a branch", n.branch(branch(fingerprint, prefix, pagefile.ClassPage)).Key)
				note("tail of a branch", n.branch(branch(fingerprint, prefix, pagefile.ClassTail)).Key)
				note("leads", pagefile.Key(n.branch(branch(fingerprint, prefix, pagefile.ClassTail)).Leads))
			}
		}
		manifest := k.name(pagefile.Name{Fingerprint: same, Class: pagefile.ClassManifest})
		require.Equal(t, pagefile.Name{Fingerprint: k.sealFingerprint(same), Class: pagefile.ClassManifest}, manifest)
	}
	require.NotEqual(t, keyOf(1).id, keyOf(2).id)
}

// TestFirstBytes: the permutations of first bytes are different ones, and none is nearly plain.
func TestFirstBytes(t *testing.T) {
	n := keyOf(1).of(tiertest.Fingerprint)
	tables := [][256]byte{n.files[0].sealed, n.files[1].sealed, n.prefixes.sealed, keyOf(2).of(tiertest.Fingerprint).files[0].sealed, keyOf(1).of(pagefile.Key{}).files[0].sealed}
	for i, table := range tables {
		for j := range i + 1 {
			equal := 0
			for b := range table {
				other := byte(b)
				if j < i {
					other = tables[j][b]
				}
				if table[b] == other {
					equal++
				}
			}
			require.Less(t, equal, 12, "one is expected")
		}
	}
}

// TestFormatStays: what another program has sealed after the comments here. Files are lost when it changes.
func TestFormatStays(t *testing.T) {
	k := keyOf(1)
	in := k.of(tiertest.Fingerprint)
	require.Equal(t, "e43c817baa0215b375a661e83e963eaf3c53a252a48a74b2b85696efe8aa2a8f", k.sealFingerprint(tiertest.Fingerprint).String())
	require.Equal(t, "2c3f371e549b44face4789398eab25b48996c767dabb54d5f7337a05fb854576", k.name(tiertest.Page(1)).Key.String())
	require.Equal(t, "2a11ca131bf7899f5fb89a2771a7f5e6c65be0962905d796469792677a49c1d6", k.name(tiertest.Tail(1)).Key.String())
	b := in.branch(tier.Branch{Fingerprint: tiertest.Fingerprint, Prefix: pagefile.Key{1}, Key: pagefile.Key{2}, Tokens: 3})
	require.Equal(t, "9b287fa3b2051428874eb72dd625cac12dd25794c0cf72130819f15e3c922544", b.Prefix.String())
	require.Equal(t, "674fe88cf9de0e5947ee9db60373cfa529684694e8c4c292a6b9df9bfd1c171d", b.Key.String())
	require.Equal(t, "c7fe712bbd0e0fdd4deac122514b2263567b33f8c4987b0c4fcf9c4b116c6bfa", pagefile.Key(b.Leads).String())

	file, err := hex.DecodeString("6b767365616c310a74e65cb2e20d738c0707070707070707070707070707070707070707070707070707070707070707" +
		"91b8b1076fb69155b14e71eb5fb79c55559cc19a5615")
	require.NoError(t, err)
	below := tiertest.NewMap()
	below.Files[k.name(tiertest.Page(1))] = tiertest.MapFile{Content: file, Used: used}
	got, err := readAll(on(below, k), tiertest.Page(1))
	require.NoError(t, err)
	require.Equal(t, "a page", string(got))
}

// TestManyFingerprints: a key keeps the tables of few fingerprints, and makes the same ones again.
func TestManyFingerprints(t *testing.T) {
	k := keyOf(1)
	first := k.of(pagefile.Key{})
	for i := range 3 * maxNames {
		k.of(pagefile.Key{1, byte(i)})
		require.LessOrEqual(t, len(k.known), maxNames)
	}
	require.Equal(t, first, k.of(pagefile.Key{}))
}

// TestBranchesByPrefix: prefixes of any length give the branches that begin so.
func TestBranchesByPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := on(tiertest.NewMap(), keyOf(2), keyOf(1))
		fingerprint := anyKey().Draw(t, "fingerprint")
		all := make(map[tier.Branch]bool)
		for _, b := range rapid.SliceOfN(anyBranch(), 1, 8).Draw(t, "branches") {
			b.Fingerprint, b.Prefix[0] = fingerprint, b.Prefix[0]%3
			all[b] = true
			require.NoError(t, tr.AddBranch(ctx, b, true))
			if rapid.Bool().Draw(t, "noted with the former key as well") {
				require.NoError(t, on(tr.inner, keyOf(1)).AddBranch(ctx, b, true))
			}
		}
		for b := range all {
			for _, n := range []int{0, 1, 2, 31, 32} {
				var want []tier.Branch
				for other := range all {
					if bytes.HasPrefix(other.Prefix[:], b.Prefix[:n]) {
						want = append(want, other)
					}
				}
				got, err := tr.Branches(ctx, fingerprint, b.Prefix[:n])
				require.NoError(t, err)
				require.ElementsMatch(t, want, got)
			}
		}
		for b := range all {
			require.NoError(t, tr.RemoveBranch(ctx, b))
		}
		require.Empty(t, tr.inner.(*tiertest.Map).Noted)
	})
}
