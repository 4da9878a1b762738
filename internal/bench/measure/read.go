package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
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

// ReadFiles reads files from start to end, one after the other.
func ReadFiles(paths []string) (Reading, error) {
	var r Reading
	buf := make([]byte, ReadBuffer)
	started := time.Now()
	for _, path := range paths {
		n, err := ReadFile(path, buf)
		r.Bytes += n
		if err != nil {
			return r, fmt.Errorf("reading a page file as dd would: %w", err)
		}
	}
	r.Took = time.Since(started)
	return r, nil
}

// ReadFile reads one file with a buffer, and returns the number of its bytes.
func ReadFile(path string, buf []byte) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var total int64
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
