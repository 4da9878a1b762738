package diskstore

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestADamagedCopyDoesNotStandForAPage demotes a page of which the remote tier has a bad copy
// of the same length, or another page's: the local file is removed next, so it must be copied
// again.
func TestADamagedCopyDoesNotStandForAPage(t *testing.T) {
	for name, harm := range map[string]func(file []byte) []byte{
		"zeros":    func(file []byte) []byte { return make([]byte, len(file)) },
		"header":   func(file []byte) []byte { file[60] ^= 1; return file },
		"a row":    func(file []byte) []byte { file[len(file)/2] ^= 4; return file },
		"footer":   func(file []byte) []byte { file[len(file)-1] ^= 1; return file },
		"half":     func(file []byte) []byte { clear(file[len(file)/2:]); return file },
		"one byte": func(file []byte) []byte { file[pagefile.PageAlign] ^= 0x80; return file },
	} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, withRemote(t))
			tokens := prompt(1, testTokens)
			p := putChain(t, s, tokens)[0]
			page := s.pages.Page(p.Key())
			info := mustStat(t, s.disk, page)
			require.NoError(t, s.demote(ctx, info))
			copied := filePath(o.Remote.Root, page)
			file := fileOf(t, copied)
			bad := harm(bytes.Clone(file))
			require.NotEqual(t, file, bad)
			require.Len(t, bad, len(file))
			require.NoError(t, os.WriteFile(copied, bad, 0o600))

			evictPage(t, s, info)
			require.False(t, s.Has(p.Key()))
			require.EqualValues(t, 1, s.Stats().Demoted)
			require.EqualValues(t, 1, s.Stats().Damaged)
			readChain(t, s, tokens, len(tokens))
			require.NoError(t, s.Flush(ctx))
			requireExact(t, s)
		})
	}
}

// TestAnotherLayoutDoesNotStandForAPage demotes a page of which the remote tier has the same
// tokens in a file of the same length with other sections.
func TestAnotherLayoutDoesNotStandForAPage(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	tokens := prompt(1, testTokens)
	old := faultPage(t, s.opt.Fingerprint, 0, tokens)
	sections := old.Layout.Sections()
	sections[0], sections[1] = sections[1], sections[0]
	now := &pagefile.Page{Tokens: tokens, Parent: old.Parent, Layout: layoutOf(t, sections, len(tokens))}
	now.Payload = make([]byte, now.Layout.Size())
	fillRows(now.Layout, now.Key(), now.Payload)
	require.Equal(t, old.Key(), now.Key())

	require.NoError(t, s.Put(ctx, old))
	info := mustStat(t, s.disk, s.pages.Page(old.Key()))
	evictPage(t, s, info)
	require.NoError(t, s.Put(ctx, now))
	again := mustStat(t, s.disk, s.pages.Page(old.Key()))
	require.Equal(t, info.Bytes, again.Bytes)
	evictPage(t, s, again)
	h, err := inspect.Header(vfs.OS, filePath(o.Remote.Root, s.pages.Page(old.Key())))
	require.NoError(t, err)
	require.True(t, h.Layout.Equal(now.Layout))
	require.Zero(t, s.Stats().Damaged)
}

// TestACopyIsDurableBeforeThePageGoes finds a copy in the remote tier whose name a process
// made visible, and not durable, before that process died.
func TestACopyIsDurableBeforeThePageGoes(t *testing.T) {
	w := newCrashWorld(t, func(o *Options) { o.Local.BudgetBytes, o.Remote.BudgetBytes = 0, 0 })
	mem, o := w.mem, w.o
	s, err := Open(ctx, o)
	require.NoError(t, err)
	tokens := prompt(1, testTokens)
	p := putChain(t, s, tokens)[0]
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	require.NoError(t, s.demote(ctx, info))
	// The copy's name again, by a rename that no process has synced.
	path := filePath(o.Remote.Root, info.Name)
	require.NoError(t, mem.Rename(path, path+"-away"))
	require.NoError(t, s.guard.SyncRemoved(ctx, []pagefile.Name{info.Name}))
	require.NoError(t, mem.Rename(path+"-away", path))

	evictPage(t, s, info)
	require.NoError(t, s.disk.SyncRemoved(ctx, []pagefile.Name{info.Name}))
	require.NoError(t, s.Close())
	o.FS = mem.Crash(0, 1)
	after, err := Open(ctx, o)
	require.NoError(t, err)
	readChain(t, after, tokens, len(tokens))
	require.NoError(t, after.Close())
}
