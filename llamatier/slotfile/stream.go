package slotfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Stream is a file that never exists as a whole. Each is a Source or a Sink.
type Stream interface {
	io.Closer
	Size() int64
}

// Source is a stream that llama-server reads. A read that fails, or gives fewer bytes than there
// are, fails in llama-server as well.
type Source interface {
	Stream
	io.ReaderAt
}

// Sink is a stream that llama-server writes, in order. A write that fails, fails in llama-server as well.
type Sink interface {
	Stream
	io.WriterAt
	Empty() error // llama-server begins anew
}

// errNoStreams reports that streams do not work here.
var errNoStreams = errors.New("there is no filesystem for streams")

// Mount lets Files make streams, if the system allows that. It may take a while, and is called once.
func (f *Files) Mount() {
	m, err := newMount(f.folder)
	if err != nil {
		f.opt.Log.Debug("no streams to llama-server: long sequences take memory or room on the disk", "reason", err)
		return
	}
	f.mu.Lock()
	f.mount = m
	f.mu.Unlock()
	go func() {
		<-m.ended // somebody may end the filesystem before Unmount
		f.Unmount()
	}()
}

// Unmount ends Mount.
func (f *Files) Unmount() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mount != nil {
		f.mount.close()
		f.mount = nil
	}
}

// Streams reports whether Files can make streams.
func (f *Files) Streams() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mount != nil
}

// Stream makes a stream. Closing the File closes the stream. After an error the stream is closed.
func (f *Files) Stream(s Stream) (*File, error) {
	f.mu.Lock()
	m := f.mount
	f.mu.Unlock()
	if m == nil {
		return nil, errors.Join(errNoStreams, s.Close())
	}
	name := f.name()
	link := filepath.Join(f.folder.Path, name)
	if err := os.Symlink(m.add(name, s), link); err != nil {
		m.remove(name)
		return nil, errors.Join(fmt.Errorf("make a stream for llama-server: %w", err), s.Close())
	}
	return &File{Name: name, of: f, kind: streamed, paths: []string{link}, end: func() error {
		m.remove(name)
		return s.Close()
	}}, nil
}

// Refused notes that llama-server refused a file. Streams are made no more if llama-server has
// never opened one: this system lets no other process into the filesystem.
func (f *Files) Refused(file *File) {
	f.mu.Lock()
	unusable := file.Streamed() && f.mount != nil && f.mount.opened() == 0
	f.mu.Unlock()
	if unusable {
		f.opt.Log.Debug("no streams to llama-server: it cannot open them")
		f.Unmount()
	}
}
