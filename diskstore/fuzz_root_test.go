package diskstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// FuzzManifest reads any bytes as a manifest. A store opens despite them and writes a good
// manifest.
func FuzzManifest(f *testing.F) {
	fp := testFingerprint(1)
	f.Add([]byte(fmt.Sprintf(`{"schema":1,"fingerprint":%q,"page_tokens":8,"identity":{"weights":"w"}}`, fp)))
	f.Add([]byte(fmt.Sprintf(`{"schema":1,"fingerprint":%q,"page_tokens":9}`, fp)))
	f.Add([]byte(`{"fingerprint":"` + strings.Repeat("0", 64) + `"}`))
	f.Add([]byte(strings.Repeat("[", 10_000)))
	f.Add([]byte(`{"identity":{"a":{"b":null}}}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		o := fuzzOptions(t)
		path := filePath(o.Local.Root, pagefile.Name{Fingerprint: fp, Class: pagefile.ClassManifest})
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(ctx, o)
		if errors.Is(err, pagefile.ErrMismatch) { // of a page size that another store may use
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		m, err := tier.ReadManifest(ctx, s.disk, fp)
		if err != nil || m.PageTokens != o.PageTokens || m.Fingerprint != fp.String() {
			t.Fatalf("manifest is %+v, %v", m, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// fuzzOptions are testOptions for a fuzzer, which runs thousands of times.
func fuzzOptions(t *testing.T) Options {
	return testOptions(t, func(o *Options) { o.Identity = nil })
}

// fuzzDirs are the directories that FuzzDirectory fills.
var fuzzDirs = []string{
	"", storetest.TmpDir, storetest.QuarantineDir, testFingerprint(1).String(), filepath.Join(testFingerprint(1).String(), "ab"),
	filepath.Join(testFingerprint(1).String(), storetest.TailsDir), filepath.Join(testFingerprint(1).String(), storetest.TailsDir, "ab"),
	filepath.Join(testFingerprint(1).String(), storetest.TailsDir, "ab", "ab"+strings.Repeat("00", 31)),
	filepath.Join(testFingerprint(1).String(), storetest.TailsDir, "ab", strings.Repeat("ab", 32)),
}

// FuzzDirectory fills a root with names of its choice: each line is a directory's number, a
// kind (f file, d directory, l link) and a name. The store counts pages by name and place, and
// removes no other file.
func FuzzDirectory(f *testing.F) {
	key := strings.Repeat("ab", 32)
	f.Add([]byte("4f" + key + ".kvp\n7f" + key + ".kvp\n3f" + key + ".kvp\n4d" + key + ".kvp\n4l" + key + ".kvp"))
	f.Add([]byte("4f" + strings.ToUpper(key) + ".kvp\n4f" + key[2:] + ".kvp\n4f" + key + ".kvp.kvp\n4f.kvp\n4f" + strings.Repeat("a", 255)))
	f.Add([]byte("1f-.tmp\n1f.lock\n1fa-1.tmp\n1da.lock\n1fa-.tmp\n1la-2.tmp"))
	f.Add([]byte("0d" + key + "\n0f" + strings.Repeat("cd", 32) + "\n0fcollect.lock\n0dcollect.lock\n3fmanifest.json\n3dmanifest.json"))
	f.Add([]byte("6d" + key + "\n6f" + strings.Repeat("ac", 32) + "\n5dzz\n5dab\n5fac\n2fx.kvp\n2d" + key + ".damaged.1-1.kvp"))
	f.Fuzz(func(t *testing.T, listing []byte) {
		if len(listing) > 4096 {
			return
		}
		o := fuzzOptions(t)
		base := filepath.Join(o.Local.Root, storetest.VersionDir)
		for _, dir := range fuzzDirs {
			if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for line := range bytes.SplitSeq(listing, []byte("\n")) {
			if len(line) > 2 {
				fill(base, line[0], line[1], string(line[2:]))
			}
		}
		want := pagesByName(base)
		s, err := Open(ctx, o)
		if err != nil {
			if _, serr := os.Lstat(filepath.Join(base, storetest.TmpDir)); serr != nil || errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return // an entry is in the place of a manifest or a lock
		}
		use, err := recount(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		if use.Local.Pages+use.Local.Tails != want {
			t.Fatalf("%d pages and %d tails, want %d together", use.Local.Pages, use.Local.Tails, want)
		}
		_ = s.Flush(ctx)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if left := pagesByName(base); left != want {
			t.Fatalf("%d pages are left of %d", left, want)
		}
	})
}

// fill makes one entry, if the system allows it.
func fill(base string, dir, kind byte, name string) {
	if strings.ContainsAny(name, "/\\\x00") || name == "." || name == ".." {
		return // no directory has such names
	}
	path := filepath.Join(base, fuzzDirs[int(dir-'0')%len(fuzzDirs)], name)
	switch kind {
	case 'd':
		_ = os.Mkdir(path, 0o700)
	case 'l':
		_ = os.Symlink(base, path)
	default:
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
		}
	}
}

// pagesByName counts the files of the fuzzer's fingerprint in the place of a page of their
// name.
func pagesByName(base string) int {
	n := 0
	top := filepath.Join(base, testFingerprint(1).String())
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		key, found := strings.CutSuffix(d.Name(), dir.PageExt)
		rel, _ := filepath.Rel(top, path)
		parts := strings.Split(filepath.ToSlash(rel), "/")
		if !found || len(key) != 64 || strings.Trim(key, "0123456789abcdef") != "" {
			return nil
		}
		page := len(parts) == 2 && parts[0] == key[:2]
		tail := len(parts) == 4 && parts[0] == storetest.TailsDir && parts[1] == key[:2] && parts[2] == key[:2]+strings.Repeat("00", 31)
		if page || tail {
			n++
		}
		return nil
	})
	return n
}
