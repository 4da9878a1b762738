package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

// A page of the load is 64 KiB, without its header.
const (
	pageTokens = 16
	rowBytes   = 2048
)

var fingerprint = pagefile.Key{0: 7, 31: 0xfe}

// sections are the sections of each page.
var sections = []pagefile.Section{{Kind: pagefile.KindK, RowBytes: rowBytes}, {Kind: pagefile.KindV, RowBytes: rowBytes}}

// prompt returns the tokens of page n of a writer.
func prompt(writer, n int) []int32 {
	tokens := make([]int32, pageTokens)
	for i := range tokens {
		tokens[i] = int32(writer<<20 | n<<4 | i)
	}
	return tokens
}

// rows returns the content of page n of a writer.
func rows(size, writer, n int) []byte {
	content := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(writer), byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = r.Read(content) // never fails
	return content
}

// loadFlags are the flags of write and read.
type loadFlags struct {
	remote, stop                   string
	localBytes, remoteBytes        int64
	writer, pages                  int
	lookupTimeout, transferTimeout time.Duration
}

// open opens the store that the flags of a command name, and returns the layout of its pages.
func open(ctx context.Context, name string, args []string) (*loadFlags, *diskstore.Store, pagefile.Layout, error) {
	f := new(loadFlags)
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.StringVar(&f.remote, "remote", "", "remote directory")
	set.StringVar(&f.stop, "stop", "", "file that ends the writer")
	set.Int64Var(&f.localBytes, "local-bytes", 5*72<<10, "local budget")
	set.Int64Var(&f.remoteBytes, "remote-bytes", 0, "remote budget")
	set.IntVar(&f.writer, "writer", 0, "number of the writer")
	set.IntVar(&f.pages, "pages", 1<<15, "pages to write or read, at most")
	// Machines are emulated: a look-up that takes 1 ms elsewhere takes 100 ms here.
	set.DurationVar(&f.lookupTimeout, "lookup-timeout", 10*time.Second, "limit of a look-up")
	set.DurationVar(&f.transferTimeout, "transfer-timeout", 20*time.Second, "limit of a step of a transfer")
	layout, err := pagefile.NewLayout(sections, pageTokens)
	if err = errors.Join(err, set.Parse(args)); err != nil {
		return nil, nil, layout, err
	}
	s, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint, PageTokens: pageTokens,
		Local:         diskstore.TierConfig{Root: "/tmp/local", BudgetBytes: f.localBytes},
		Remote:        diskstore.TierConfig{Root: f.remote, BudgetBytes: f.remoteBytes},
		RemoteTimeout: f.lookupTimeout, ReadTimeout: f.transferTimeout,
		Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
	})
	return f, s, layout, err
}

// report prints numbers for the test.
func report(v any) {
	line, _ := json.Marshal(v)
	fmt.Printf("RESULT %s\n", line)
}

// write puts pages until the stop file exists. Pages leave the local tier, which is small, for
// the remote one. A line tells each change of the number of pages that have moved there.
func write(args []string) error {
	ctx := context.Background()
	f, s, layout, err := open(ctx, "write", args)
	if err != nil {
		return err
	}
	var demoted uint64
	var longest time.Duration
	for n := 0; n < f.pages; n++ {
		if _, err := os.Stat(f.stop); f.stop != "" && err == nil {
			break
		}
		page := &pagefile.Page{Parent: fingerprint, Tokens: prompt(f.writer, n), Layout: layout, Payload: rows(layout.Size(), f.writer, n)}
		began := time.Now()
		err := s.Put(ctx, page)
		longest = max(longest, time.Since(began))
		if err != nil {
			fmt.Println("put:", err)
		}
		if now := s.Stats().Demoted; now != demoted {
			demoted = now
			fmt.Printf("demoted %d of %d\n", demoted, n+1)
		}
	}
	flushCtx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.Flush(flushCtx); err != nil {
		fmt.Println("flush:", err)
	}
	st := s.Stats()
	report(wire.WriteReport{
		Puts: st.Puts, PutErrors: st.PutErrors, Demoted: st.Demoted, Evicted: st.Evicted, TierErrors: st.TierErrors, Damaged: st.Damaged,
		RemoteBooked: st.RemoteBooked, LongestPut: longest.Round(time.Millisecond).String(), Down: st.Remote.Down,
	})
	return s.Close()
}

// read looks up all pages of a writer and compares their content.
func read(args []string) error {
	ctx := context.Background()
	f, s, layout, err := open(ctx, "read", args)
	if err != nil {
		return err
	}
	var r wire.ReadReport
	buf := make([]byte, layout.Size())
	for n := range f.pages {
		tokens := prompt(f.writer, n)
		refs := s.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact
		if len(refs) != 1 {
			r.Missing++
			continue
		}
		if err := s.Read(ctx, refs[0], tokens, layout, diskstore.Into{Rows: buf}); err != nil {
			fmt.Println("read:", n, err)
			r.Failed++
			continue
		}
		if !bytes.Equal(buf, rows(layout.Size(), f.writer, n)) {
			return fmt.Errorf("page %d of writer %d has other content", n, f.writer)
		}
		r.Found++
	}
	r.Damaged = s.Stats().Damaged
	report(r)
	return s.Close()
}

// lookEvery is the pause between two looks at the server's disk.
const lookEvery = 20 * time.Millisecond

// usage prints the largest disk space that files below a directory have occupied until the
// stop file existed. Directories, locks and the ledger are not counted, as in a budget.
//
// Files are moved, removed and made during a walk, so that the sum of one walk counts files
// that never existed together. Files that two walks in a row have found existed together
// between the two.
func usage(args []string) error {
	var most wire.UsageReport
	var before map[inode]file
	for last := false; !last; {
		_, err := os.Stat(args[1])
		last = err == nil // one look more
		now, err := occupied(args[0])
		if err != nil {
			return err
		}
		if both := together(before, now); both.Most > most.Most {
			most = both
		}
		before = now
		time.Sleep(lookEvery) // an emulated processor has other work
	}
	report(most)
	return nil
}

// together returns the disk space of the files that two walks have found.
func together(before, now map[inode]file) wire.UsageReport {
	r := wire.UsageReport{Files: make(map[string]int64)}
	for id, f := range now {
		if was, ok := before[id]; ok {
			bytes := min(was.bytes, f.bytes)
			r.Most += bytes
			r.Files[f.path] = bytes
		}
	}
	return r
}

// file is a file that a walk has found.
type file struct {
	path  string
	bytes int64 // on the disk
}

// inode names a file, also after a rename, and apart from a later file with the same number.
type inode struct {
	number uint64
	born   unix.StatxTimestamp
}

// ledgerOrLock matches the names of files that no budget counts. A ledger is a temporary file
// until it replaces the one before.
var ledgerOrLock = regexp.MustCompile(`\.(json|lock)$|-usage[0-9]+\.tmp$`)

// occupied returns the disk space of pages and temporary files.
func occupied(dir string) (map[inode]file, error) {
	found := make(map[inode]file)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if ledgerOrLock.MatchString(e.Name()) {
			return nil
		}
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st) == nil {
			found[inode{st.Ino, st.Btime}] = file{path, int64(st.Blocks) * 512}
		}
		return nil
	})
	return found, err
}

// hold opens a file, says so, and keeps it open until this process is killed.
func hold(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println("open")
	return unix.Pause()
}
