package diskstore

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// readPlaced reads a page and asks for the place of its rows.
func readPlaced(t testing.TB, s *Store, ref Ref, tokens []int32) ([]byte, *Placed, error) {
	t.Helper()
	l := layoutOf(t, testSections, ref.Stored)
	buf := make([]byte, l.Size())
	var placed Placed
	err := s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Placed: &placed, Use: func(i int, rows []byte) error {
		copy(l.Rows(buf, i), rows)
		return nil
	}})
	return buf, &placed, err
}

// requirePlaced fails unless the rows of ref's page are at the place in placed.
func requirePlaced(t testing.TB, ref Ref, placed *Placed) {
	t.Helper()
	l := layoutOf(t, testSections, ref.Stored)
	want := make([]byte, l.Size())
	fillRows(l, ref.Key, want)
	require.Len(t, placed.Offsets, len(testSections))
	for i, section := range testSections {
		rows := make([]byte, ref.Stored*int(section.RowBytes))
		_, err := placed.File.ReadAt(rows, placed.Offsets[i])
		require.NoError(t, err)
		require.Equal(t, l.Rows(want, i), rows, "section %d", i)
	}
}

// requireNotPlaced fails unless ref's page is read and not placed.
func requireNotPlaced(t testing.TB, s *Store, ref Ref, tokens []int32, why string) {
	t.Helper()
	buf, placed, err := readPlaced(t, s, ref, tokens)
	require.NoError(t, err)
	require.ErrorContains(t, placed.Err, why)
	require.Nil(t, placed.File)
	want := make([]byte, len(buf))
	fillRows(layoutOf(t, testSections, ref.Stored), ref.Key, want)
	require.Equal(t, want, buf, "the page was read nevertheless")
}

func TestPlacedRowsAreThoseRead(t *testing.T) {
	s := open(t, testOptions(t))
	tokens := putPrompt(t, s, 1, 2*testTokens+5)
	// The second prompt shares two tokens of the tail.
	shared := append(append([]int32{}, tokens[:2*testTokens+2]...), 7, 7)
	for _, tokens := range [][]int32{tokens, shared} {
		before := s.Stats()
		refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
		require.Len(t, refs, 3)
		for _, ref := range refs {
			buf, placed, err := readPlaced(t, s, ref, tokens)
			require.NoError(t, err)
			requirePlaced(t, ref, placed)
			want := make([]byte, len(buf))
			fillRows(layoutOf(t, testSections, ref.Stored), ref.Key, want)
			require.Equal(t, want, buf)
			_, err = placed.File.WriteAt([]byte{1}, 0)
			require.Error(t, err, "the file is for reading")
			require.NoError(t, placed.File.Close())
		}
		require.Equal(t, before.Hits+3, s.Stats().Hits)
	}
}

// A place stays valid while its file is open, even after the page was removed or replaced.
func TestPlacedFileOutlivesThePage(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be removed")
	}
	page := physicalPage(t)
	for name, lose := range map[string]func(*testing.T, *Store, pagefile.Name){
		"removed": func(t *testing.T, s *Store, name pagefile.Name) {
			removed, err := s.disk.Remove(ctx, tier.Info{Name: name})
			require.NoError(t, err)
			require.True(t, removed)
		},
		"quarantined": func(t *testing.T, s *Store, name pagefile.Name) {
			moved, err := s.disk.Quarantine(ctx, tier.Info{Name: name}, "test")
			require.NoError(t, err)
			require.True(t, moved)
		},
		"replaced": func(t *testing.T, s *Store, name pagefile.Name) {
			tiertest.Upload(t, s.disk, name, make([]byte, page), time.Now())
		},
		"demoted": func(t *testing.T, s *Store, name pagefile.Name) {
			evictPage(t, s, mustStat(t, s.disk, name))
			require.NoFileExists(t, filePath(s.opt.Local.Root, name))
			require.FileExists(t, filePath(s.opt.Remote.Root, name))
		},
		"deleted with its root": func(t *testing.T, s *Store, _ pagefile.Name) {
			require.NoError(t, os.RemoveAll(s.opt.Local.Root))
		},
		"given up by its store": func(t *testing.T, s *Store, _ pagefile.Name) {
			require.NoError(t, s.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, testOptions(t, withRemote(t)))
			tokens := putPrompt(t, s, 1, testTokens)
			ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
			_, placed, err := readPlaced(t, s, ref, tokens)
			require.NoError(t, err)
			lose(t, s, ref.name(s.pages))
			requirePlaced(t, ref, placed)
			require.NoError(t, placed.File.Close())
		})
	}
}

func TestNotPlaced(t *testing.T) {
	tokens := prompt(1, testTokens+3)
	t.Run("compressed", func(t *testing.T) {
		// Compression does not make every section smaller; the others are raw nevertheless.
		s := open(t, testOptions(t, func(o *Options) { o.Compress = true }))
		putChain(t, s, tokens)
		for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
			requireNotPlaced(t, s, ref, tokens, "compressed")
		}
	})
	t.Run("remote", func(t *testing.T) {
		s, o := openNew(t, withRemote(t))
		putChain(t, s, tokens)
		refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact // refs that name the local tier
		moveToRemote(t, o, namesOf(s, tokens))
		for _, ref := range refs {
			requireNotPlaced(t, s, ref, tokens, "remote")
		}
		require.NoError(t, s.Flush(ctx)) // reading the pages has promoted them
		for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
			_, placed, err := readPlaced(t, s, ref, tokens)
			require.NoError(t, err)
			requirePlaced(t, ref, placed)
			require.NoError(t, placed.File.Close())
		}
	})
	t.Run("no real file", func(t *testing.T) {
		s := open(t, testOptions(t, withFS(vfs.Inject(quickFS))))
		putChain(t, s, tokens)
		for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
			requireNotPlaced(t, s, ref, tokens, "operating system")
		}
	})
}

func TestReadingInPlaceFailsLikeRead(t *testing.T) {
	tokens := prompt(1, testTokens)
	for name, edit := range map[string]func(data []byte) []byte{
		"header":  func(data []byte) []byte { data[100] ^= 1; return data },
		"offset":  func(data []byte) []byte { data[152+4*testTokens+13] ^= 0x10; return data },
		"payload": func(data []byte) []byte { data[5000] ^= 1; return data },
		"footer":  func(data []byte) []byte { data[len(data)-1] ^= 1; return data },
		"length":  func(data []byte) []byte { return data[:len(data)-pagefile.PageAlign] },
	} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t)
			putChain(t, s, tokens)
			ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
			path := filePath(o.Local.Root, ref.name(s.pages))
			data := fileOf(t, path)
			require.NoError(t, os.WriteFile(path, edit(data), 0o600))
			_, placed, err := readPlaced(t, s, ref, tokens)
			require.ErrorIs(t, err, pagefile.ErrDamaged)
			require.Nil(t, placed.File)
			require.NoFileExists(t, path)
			require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), 1)
			_, _, err = readPlaced(t, s, ref, tokens)
			require.ErrorIs(t, err, tier.ErrNotFound)
		})
	}
	s := open(t, testOptions(t))
	putChain(t, s, tokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	_, _, err := readPlaced(t, s, ref, prompt(2, testTokens))
	require.ErrorIs(t, err, pagefile.ErrMismatch)
	l := layoutOf(t, testSections, testTokens)
	err = s.Read(ctx, ref, tokens[1:], l, Into{Placed: new(Placed), Use: func(int, []byte) error { return nil }})
	require.ErrorIs(t, err, pagefile.ErrInvalidPage)
	require.NoError(t, s.Close())
	_, _, err = readPlaced(t, s, ref, tokens)
	require.ErrorIs(t, err, tier.ErrClosed)
}
