//go:build unix

package diskstore

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// strangers are entries that another user can put in the place of the store's files. outside
// is a directory that must stay unchanged.
var strangers = map[string]func(path, outside string) error{
	"empty file": func(path, _ string) error { return os.WriteFile(path, nil, 0o600) },
	"file":       func(path, _ string) error { return os.WriteFile(path, make([]byte, 100_000), 0o600) },
	"directory": func(path, _ string) error {
		return os.MkdirAll(filepath.Join(path, "x"), 0o700)
	},
	"fifo":             func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
	"socket":           func(path, _ string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) },
	"link to nothing":  func(path, outside string) error { return os.Symlink(filepath.Join(outside, "none"), path) },
	"link to itself":   func(path, _ string) error { return os.Symlink(path, path) },
	"link to a file":   func(path, outside string) error { return os.Symlink(filepath.Join(outside, "file"), path) },
	"link to a folder": func(path, outside string) error { return os.Symlink(filepath.Join(outside, "folder"), path) },
	"hard link":        func(path, outside string) error { return os.Link(filepath.Join(outside, "file"), path) },
	"device": func(path, _ string) error {
		return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) // /dev/zero: a file without end
	},
}

// TestStrangersEverywhere puts every stranger in every place of a root and then uses the
// store. The store may refuse operations and may compute pages again. The store returns no
// wrong rows, hangs in no operation, and changes nothing outside its root.
func TestStrangersEverywhere(t *testing.T) {
	tokens := prompt(1, 2*testTokens+3)
	first := pageKeyOf(tokens)
	fp := testFingerprint(1).String()
	second := pagefile.ChainKey(first, tokens[testTokens:2*testTokens], nil)
	tail := pagefile.ChainKey(second, tokens[2*testTokens:], nil)
	leads, _ := pagefile.LeadsOf(tokens[2*testTokens:], nil, testTokens)
	places := map[string]string{
		"version":        "",
		"fingerprint":    fp,
		"shard":          filepath.Join(fp, first.String()[:2]),
		"page":           filepath.Join(fp, first.String()[:2], first.String()+dir.PageExt),
		"tails":          filepath.Join(fp, storetest.TailsDir),
		"tails shard":    filepath.Join(fp, storetest.TailsDir, tail.String()[:2]),
		"tails folder":   storetest.TailDir(testFingerprint(1), pagefile.Key{tail[0]}),
		"tail":           filepath.Join(storetest.TailDir(testFingerprint(1), pagefile.Key{tail[0]}), tail.String()+dir.PageExt),
		"prefixes":       filepath.Join(fp, storetest.PrefixesDir),
		"prefixes shard": filepath.Join(fp, storetest.PrefixesDir, second.String()[:2]),
		"prefix":         filepath.Join(fp, storetest.PrefixesDir, second.String()[:2], second.String()),
		"branch":         filepath.Join(fp, storetest.PrefixesDir, second.String()[:2], second.String(), fmt.Sprintf("tail-3-%v-%x", tail, leads)),
		"manifest":       filepath.Join(fp, dir.ManifestFile),
		"tmp":            storetest.TmpDir,
		"tmp file":       filepath.Join(storetest.TmpDir, "00dead-1.tmp"),
		"tmp lock":       filepath.Join(storetest.TmpDir, "00dead.lock"),
		"quarantine":     storetest.QuarantineDir,
		"lock":           storetest.CollectLock,
	}
	// Places in which the store soon removes a stranger or does without the place.
	healed := map[string]bool{"page": true, "tail": true, "tmp file": true, "tmp lock": true, "branch": true}
	for place, rel := range places {
		for kind, put := range strangers {
			t.Run(place+" is "+kind, func(t *testing.T) {
				outside := t.TempDir()
				require.NoError(t, os.Mkdir(filepath.Join(outside, "folder"), 0o700))
				for _, name := range []string{"file", "folder/file"} {
					require.NoError(t, os.WriteFile(filepath.Join(outside, name), []byte("secret"), 0o600))
				}
				s, o := openNew(t, withFS(quickFS))
				putFaultChain(t, s, tokens)
				require.NoError(t, s.local.room.Collect(ctx, room.Demand{}))
				require.NoError(t, s.Close())

				path := filepath.Join(o.Local.Root, storetest.VersionDir, rel)
				require.NoError(t, os.RemoveAll(path))
				if err := put(path, outside); err != nil {
					t.Skipf("cannot be made here: %v", err)
				}
				before := snapshot(t, outside)
				s, err := Open(ctx, o)
				if err != nil {
					require.NotEmpty(t, err.Error())
				} else {
					life := &faultLife{t: t, s: s, o: o, bad: make(map[pagefile.Key]bool)}
					life.useAmongStrangers(tokens)
					if healed[place] && (place != "branch" || kind != "directory") { // with files, which stay
						require.Equal(t, len(tokens), life.read(tokens))
						_, err := s.local.purge(ctx, purge{fingerprint: s.opt.Fingerprint, removed: func(tier.Info) {}})
						require.NoError(t, err)
					}
					require.NoError(t, s.Close())
				}
				require.Equal(t, before, snapshot(t, outside))
			})
		}
	}
}

// useAmongStrangers calls every operation twice and ignores errors.
func (f *faultLife) useAmongStrangers(tokens []int32) {
	for range 2 {
		f.read(tokens)
		_ = f.put(tokens)
		f.damageUnlinked(tokens)
		f.read(tokens)
		_ = f.put(tokens)
		for _, ref := range f.s.Find(ctx, Prompt{Tokens: tokens}).Exact {
			ref.used = time.Now().Add(-time.Hour).UnixNano()
			touch(f.s, ref)
		}
		_ = f.s.local.room.Collect(ctx, room.Demand{})
		found, _ := recount(ctx, f.s)
		_, _ = f.s.Reclaim(ctx, found, func(FingerprintUsage) bool { return true })
		f.flush()
	}
}

// damageUnlinked flips a bit in the chain's first page if that file is the store's own.
func (f *faultLife) damageUnlinked(tokens []int32) {
	path := filePath(f.o.Local.Root, f.s.pages.Page(pageKeyOf(tokens)))
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() < pagefile.FooterBytes+1 || info.Sys().(*syscall.Stat_t).Nlink > 1 {
		return
	}
	if real, err := filepath.EvalSymlinks(path); err != nil || real != path {
		return
	}
	data, err := os.ReadFile(path)
	require.NoError(f.t, err)
	data[len(data)-pagefile.FooterBytes-1] ^= 1
	require.NoError(f.t, os.WriteFile(path, data, 0o600))
}

// putFaultChain stores a chain of small pages.
func putFaultChain(t *testing.T, s *Store, tokens []int32) {
	t.Helper()
	life := &faultLife{t: t, s: s, o: s.opt}
	require.NoError(t, life.put(tokens))
}

// snapshot describes every file below a directory.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		text := ""
		if info.Mode().IsRegular() {
			data := fileOf(t, path)
			text = string(data)
		}
		all = append(all, fmt.Sprint(path, info.Mode(), info.Size(), text))
		return nil
	}))
	return all
}

// TestForeignOwners gives parts of a root to another user. The test needs root.
func TestForeignOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root")
	}
	const somebody = 12345
	tokens := prompt(1, 2*testTokens+3)
	for rel, want := range map[string]error{
		"":                   tier.ErrRootOwner,
		storetest.VersionDir: tier.ErrRootOwner,
		storetest.VersionDir + "/" + storetest.TmpDir:                                     nil,
		storetest.VersionDir + "/" + testFingerprint(1).String():                          nil,
		storetest.VersionDir + "/" + testFingerprint(1).String() + "/" + dir.ManifestFile: nil,
		storetest.VersionDir + "/" + storetest.CollectLock:                                nil,
	} {
		t.Run("root/"+rel, func(t *testing.T) {
			s, o := openNew(t)
			putFaultChain(t, s, tokens)
			require.NoError(t, s.local.room.Collect(ctx, room.Demand{}))
			require.NoError(t, s.Close())
			require.NoError(t, os.Chown(filepath.Join(o.Local.Root, rel), somebody, somebody))
			s, err := Open(ctx, o)
			require.ErrorIs(t, err, want)
			if err != nil {
				return
			}
			life := &faultLife{t: t, s: s, o: o}
			require.Equal(t, len(tokens), life.read(tokens))
			require.NoError(t, life.put(prompt(2, testTokens)))
			require.NoError(t, s.Close())
		})
	}
}

// TestAnyUmask makes every file under the loosest and the tightest umask.
func TestAnyUmask(t *testing.T) {
	for _, umask := range []int{0, 0o777} {
		t.Run(fmt.Sprintf("%03o", umask), func(t *testing.T) {
			o := testOptions(t, withRemote(t), withFS(vfs.OS))
			old := syscall.Umask(umask)
			s, err := Open(ctx, o)
			if err == nil {
				life := &faultLife{t: t, s: s, o: o}
				err = life.put(prompt(1, testTokens+3))
				life.demoteOne()
			}
			if err == nil {
				err = s.remote.room.Collect(ctx, room.Demand{})
			}
			if err == nil {
				err = s.Flush(ctx)
			}
			syscall.Umask(old)
			require.NoError(t, err)
			for _, root := range []string{o.Local.Root, o.Remote.Root} {
				require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
					require.NoError(t, err)
					info, err := d.Info()
					require.NoError(t, err)
					want := os.FileMode(0o600)
					if d.IsDir() {
						want = 0o700
					}
					require.Equal(t, want, info.Mode().Perm(), path)
					return nil
				}))
			}
			require.NoError(t, s.Close())
		})
	}
}
