//go:build unix

package diskstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func TestModesAreTightWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	s, o := openNew(t)
	putChain(t, s, prompt(1, 2*testTokens+1))
	require.NoError(t, filepath.WalkDir(o.Local.Root, func(path string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		if d.IsDir() {
			require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), path)
		} else {
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), path)
		}
		return nil
	}))
}

func TestStrangersInAPagesPlace(t *testing.T) {
	tokens := prompt(1, testTokens)
	makers := map[string]func(t *testing.T, path string){
		"directory": func(t *testing.T, path string) { require.NoError(t, os.MkdirAll(filepath.Join(path, "x"), 0o700)) },
		"fifo":      func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o600)) },
		"symlink": func(t *testing.T, path string) {
			target := filepath.Join(t.TempDir(), "target")
			require.NoError(t, os.WriteFile(target, []byte("secret"), 0o600))
			require.NoError(t, os.Symlink(target, path))
		},
		"socket": func(t *testing.T, path string) { require.NoError(t, syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0)) },
		"empty":  nil,
	}
	for name, mk := range makers {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t)
			p := pageOf(t, s.opt.Fingerprint, 0, tokens)
			path := filePath(o.Local.Root, s.pages.Page(p.Key()))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			ref := Ref{Key: p.Key(), Parent: p.Parent, Tokens: testTokens, Stored: testTokens, Tier: tier.Local}
			buf := make([]byte, p.Layout.Size())
			if mk == nil {
				require.NoError(t, os.WriteFile(path, nil, 0o600))
				require.ErrorIs(t, s.Read(ctx, ref, tokens, p.Layout, Into{Rows: buf}), pagefile.ErrDamaged)
			} else {
				mk(t, path)
				require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
				require.Error(t, s.Read(ctx, ref, tokens, p.Layout, Into{Rows: buf}))
			}
			require.NoError(t, s.Put(ctx, p))
			readChain(t, s, tokens, testTokens)
		})
	}
}
