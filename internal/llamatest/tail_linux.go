package llamatest

import (
	"bytes"
	"sync"
)

// tailBytes bounds a tail.
const tailBytes = 4 << 10

// tail keeps the last bytes that were written to it.
type tail struct {
	mu   sync.Mutex
	last []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = append(t.last, p...)
	if over := len(t.last) - tailBytes; over > 0 {
		t.last = append(t.last[:0], t.last[over:]...)
	}
	return len(p), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.last)
}
