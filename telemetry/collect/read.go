package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
)

const (
	// answerMost bounds the wait for a collector's answer, which may wait for its disk.
	answerMost = 3 * time.Second
	// readMost bounds a read in all.
	readMost = 5 * time.Second
	// rootsMax bounds the roots whose reads are counted apart.
	rootsMax = 64
)

// ErrNothing reports a root for which nothing was collected: errors.Is reports that it is
// fs.ErrNotExist, too.
var ErrNothing = fmt.Errorf("nothing was collected there: no server with tiering has run, or this is not its directory: %w", fs.ErrNotExist)

// ErrNoCollector reports that Words were asked for and no collector runs.
var ErrNoCollector = errors.New("no collector runs: start the server, or kvtier collect")

// Read returns the state of a root: that of its collector, or where none answers that of its
// file, whose Live is false. Words are never in it. The error is ErrNothing where there is
// neither.
func Read(ctx context.Context, root string) (telemetry.State, error) {
	return within(ctx, root, func(ctx context.Context, dir string) (telemetry.State, error) {
		s, err := ask(ctx, dir, statePath)
		if err == nil {
			keepWords(&s, nil) // there are none
			return s, nil
		}
		if ctx.Err() != nil {
			return s, err
		}
		return readFile(dir)
	})
}

// ReadWords does as Read, with the Words of one namespace. The error is ErrNoCollector where no
// collector answers: Words are only in its memory.
func ReadWords(ctx context.Context, root, namespace string) (telemetry.State, error) {
	return within(ctx, root, func(ctx context.Context, dir string) (telemetry.State, error) {
		s, err := ask(ctx, dir, wordsPath+"?namespace="+url.QueryEscape(namespace))
		if err != nil {
			return s, errors.Join(ErrNoCollector, err)
		}
		keepWords(&s, &namespace)
		return s, nil
	})
}

// guards count the reads of each root that are left behind because its disk hangs.
var guards struct {
	sync.Mutex
	of map[string]*steady.Guard
}

func guardOf(root string) *steady.Guard {
	guards.Lock()
	defer guards.Unlock()
	g := guards.of[root]
	if g == nil {
		if guards.of == nil || len(guards.of) == rootsMax {
			guards.of = make(map[string]*steady.Guard)
		}
		g = new(steady.Guard)
		guards.of[root] = g
	}
	return g
}

// within bounds the time of a read.
func within(ctx context.Context, root string, read func(ctx context.Context, dir string) (telemetry.State, error)) (telemetry.State, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return telemetry.State{}, fmt.Errorf("read telemetry of %s: %w", root, err)
	}
	s, err := steady.Do(ctx, guardOf(abs), steady.Wait{Most: readMost, Grace: readMost / 20}, func() (telemetry.State, error) {
		return read(ctx, filepath.Join(abs, directoryName))
	}, func(telemetry.State, error) {})
	if err != nil {
		return telemetry.State{}, fmt.Errorf("read telemetry of %s: %w", root, err)
	}
	return s, nil
}

// ask asks the collector.
func ask(ctx context.Context, dir, path string) (s telemetry.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerMost)
	defer cancel()
	client := newClient(func(ctx context.Context) (net.Conn, error) { return dial(ctx, dir, true) })
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address(path), nil)
	if err != nil {
		return s, err
	}
	answer, err := client.Do(request)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, telemetry.StateBytesMax+1))
	switch {
	case err != nil:
		return s, err
	case answer.StatusCode != http.StatusOK:
		return s, fmt.Errorf("the collector answered %s: %.200q", answer.Status, data)
	case len(data) > telemetry.StateBytesMax:
		return s, fmt.Errorf("the collector's answer is larger than %d bytes", telemetry.StateBytesMax)
	}
	if s, err = decodeState(data); err != nil {
		return s, fmt.Errorf("decode the collector's answer: %w", err)
	}
	return s, nil
}

// readFile returns the state in the file.
func readFile(dir string) (s telemetry.State, err error) {
	if _, err := ownerOf(dir, true); errors.Is(err, fs.ErrNotExist) {
		return s, ErrNothing
	} else if err != nil {
		return s, err
	}
	path := filepath.Join(dir, fileName)
	data, err := readAll(vfs.OS, path, fileBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNothing
	}
	b := newBooks(Options{}.withDefaults())
	if err == nil {
		err = b.fill(data, "")
	}
	if err != nil {
		return s, fmt.Errorf("read %s: %w", path, err)
	}
	s = b.state(filepath.Dir(dir), func(string) string { return "" })
	s.Live = false
	return s, nil
}
