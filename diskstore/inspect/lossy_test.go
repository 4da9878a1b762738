package inspect

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// putNumbers stores tokens in pages whose rows are f16, and returns the pages.
func putNumbers(t *testing.T, s *diskstore.Store, fingerprint pagefile.Key, tokens []int32) (pages []*pagefile.Page) {
	sections := []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 2048}, {Kind: pagefile.KindV, RowBytes: 2048}}
	parent := fingerprint
	for at := 0; at < len(tokens); at += storetest.Tokens {
		l := storetest.Layout(t, sections, storetest.Tokens)
		p := &pagefile.Page{Parent: parent, Start: uint32(at), Tokens: tokens[at : at+storetest.Tokens], Layout: l, Payload: make([]byte, l.Size())}
		for i := 0; i < len(p.Payload); i += 2 {
			binary.LittleEndian.PutUint16(p.Payload[i:], uint16(0x3000+(i*2654435761)>>7&0x7ff))
		}
		require.NoError(t, s.Put(ctx, p))
		parent, pages = p.Key(), append(pages, p)
	}
	return pages
}

// TestLossyPages runs the tools on a conversation of which the remote tier has lossy pages.
func TestLossyPages(t *testing.T) {
	const fileBytes = 11 * pagefile.PageAlign // header, 4 blocks each of K and V, footer, and a directory's
	o := testOptions(t, withRemote(t), func(o *diskstore.Options) {
		o.Cold = diskstore.ColdTypes{K: encoding.Q8_0, V: encoding.Q4_0}
		o.Local.BudgetBytes = 3 * fileBytes
	})
	s := open(t, o)
	pages := putNumbers(t, s, o.Fingerprint, testrows.Prompt(1, 3*storetest.Tokens))
	require.NoError(t, s.Flush(ctx))
	putNumbers(t, s, o.Fingerprint, testrows.Prompt(2, 3*storetest.Tokens))
	require.NoError(t, s.Flush(ctx))
	require.EqualValues(t, 3, s.Stats().LossyPages)
	r := rootsOf(t, o)
	cold := pagefile.ColdFingerprint(o.Fingerprint)

	for _, sample := range []float64{0, 1} {
		checks, err := r.Check(ctx, CheckOptions{Sample: sample, Found: func(f Finding) { t.Errorf("found %v", f) }})
		require.NoError(t, err)
		require.Equal(t, 3, checks[1].Read)
		require.NoError(t, checks[1].Err)
	}
	last := pagefile.Name{Fingerprint: cold, Key: pages[2].Key()}
	found, err := r.Find(ctx, last.Key.String()[:12])
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, last, found[0].Name)
	h, err := Header(o.FS, found[0].Path)
	require.NoError(t, err)
	require.True(t, h.Lossy())
	h, wrong, err := VerifySections(ctx, o.FS, found[0].Path)
	require.NoError(t, err)
	require.Equal(t, make([]error, len(h.Sections)), wrong)
	chain, err := r.Chain(ctx, last)
	require.NoError(t, err)
	require.Len(t, chain, 3)
	for i, file := range chain {
		require.Equal(t, pagefile.Name{Fingerprint: cold, Key: pages[i].Key()}, file.Name)
	}
	var archive bytes.Buffer
	_, err = r.Export(ctx, chain, &archive, func(int64) {})
	require.ErrorIs(t, err, ErrLossy)
	require.Empty(t, archive.Bytes())

	// With one page exact again, Find and Chain prefer that one.
	require.NoError(t, s.Put(ctx, pages[0]))
	require.NoError(t, s.Put(ctx, pages[1]))
	found, err = r.Find(ctx, pages[1].Key().String()[:12])
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, o.Fingerprint, found[0].Fingerprint)
	chain, err = r.Chain(ctx, last)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{o.Fingerprint, o.Fingerprint, cold}, []pagefile.Key{chain[0].Fingerprint, chain[1].Fingerprint, chain[2].Fingerprint})
	_, err = r.Export(ctx, chain[:2], &archive, func(int64) {})
	require.NoError(t, err)

	// Without a manifest, which says whose pages these are, lossy pages alone are found.
	name := pagefile.Name{Fingerprint: cold, Class: pagefile.ClassManifest}
	_, err = r.Remote.Remove(ctx, tier.Info{Name: name})
	require.NoError(t, err)
	chain, err = r.Chain(ctx, last)
	require.NoError(t, err)
	require.Equal(t, cold, chain[0].Fingerprint)
}
