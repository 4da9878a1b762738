package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// ReadBuffer is the block size of a plain read, as in dd bs=4M.
const ReadBuffer = 4 << 20

// Reading is the time of a plain read of files.
type Reading struct {
	Bytes int64
	Took  time.Duration
}

// Rate is in bytes per second.
func (r Reading) Rate() float64 { return float64(r.Bytes) / r.Took.Seconds() }

// ReadFiles reads files from start to end. Readers take turns, each with a buffer of its own.
func ReadFiles(paths []string, readers, buffer int) (Reading, error) {
	var g errgroup.Group
	bytes := make([]int64, readers)
	started := time.Now()
	for reader := range readers {
		g.Go(func() error {
			buf := make([]byte, buffer)
			for i := reader; i < len(paths); i += readers {
				n, err := readFile(paths[i], buf)
				if err != nil {
					return fmt.Errorf("reading a page file as dd would: %w", err)
				}
				bytes[reader] += n
			}
			return nil
		})
	}
	err := g.Wait()
	r := Reading{Took: time.Since(started)}
	for _, n := range bytes {
		r.Bytes += n
	}
	return r, err
}

// readFile returns the number of a file's bytes.
func readFile(path string, buf []byte) (total int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		n, err := f.Read(buf)
		total += int64(n)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}
