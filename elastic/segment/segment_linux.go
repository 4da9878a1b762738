package segment

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	size    = 24 // bytes of a segment
	lockEnd = ".lock"

	// The file with that end has four numbers: the version of the others, the limit in force, the
	// bytes that the process lacks, and those that it could give.
	toldVersion = 1
	toldBytes   = 32

	// patience is how long a lock is waited for. Processes hold it for microseconds.
	patience = 250 * time.Millisecond
	pause    = time.Millisecond

	// segmentsMax and namesMax bound a list: anyone may fill /dev/shm.
	segmentsMax = 1024
	namesMax    = 1 << 16
)

// List returns the segments of this machine that this user may read, by name. Files of other
// programs are left out: a segment has 24 bytes and a limit above zero.
func List() ([]Segment, error) { return list(Dir) }

func list(dir string) ([]Segment, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	defer d.Close()
	entries, err := d.ReadDir(namesMax)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	holders := lockHolders()
	var all []Segment
	for _, entry := range entries {
		if !entry.Type().IsRegular() || checkName(entry.Name()) != nil || strings.HasSuffix(entry.Name(), lockEnd) {
			continue
		}
		s, err := look(dir, entry.Name(), holders)
		if err != nil || s.Limit <= 0 {
			continue
		}
		if all = append(all, s); len(all) == segmentsMax {
			break
		}
	}
	slices.SortFunc(all, func(a, b Segment) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Get returns one segment.
func Get(name string) (Segment, error) {
	if err := checkName(name); err != nil {
		return Segment{}, err
	}
	s, err := look(Dir, name, lockHolders())
	if err != nil {
		return Segment{}, fmt.Errorf("segment %s: %w", name, err)
	}
	return s, nil
}

// look reads a segment.
func look(dir, name string, holders map[uint64]int) (Segment, error) {
	s := Segment{Name: name}
	f, err := open(dir, name, os.O_RDWR)
	if errors.Is(err, fs.ErrPermission) {
		s.ReadOnly = true
		f, err = open(dir, name, os.O_RDONLY)
	}
	if err != nil {
		return s, err
	}
	defer f.Close()
	fields, err := read(f)
	if err != nil {
		return s, err
	}
	s.Limit, s.Used, s.Kept = fields[0], fields[1], fields[2]
	s.State, s.PID = life(dir, name, holders, &s)
	return s, nil
}

// open opens a file of 24 bytes, and never waits: a name may lead to a pipe.
func open(dir, name string, mode int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), mode|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoSegment
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != size) {
		err = ErrNoSegment
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// locked runs f with the file's lock.
func locked(file *os.File, how int, f func() error) error {
	for began := time.Now(); ; time.Sleep(pause) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil {
			defer unix.Flock(int(file.Fd()), unix.LOCK_UN)
			return f()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock it: %w", err)
		}
		if time.Since(began) > patience {
			return ErrBusy
		}
	}
}

// read reads the three numbers, under the lock: a writer may be at it.
func read(file *os.File) (fields [3]int64, err error) {
	err = locked(file, unix.LOCK_SH, func() error {
		var b [size]byte
		if _, err := file.ReadAt(b[:], 0); err != nil {
			return fmt.Errorf("read it: %w", err)
		}
		for i := range fields {
			fields[i] = int64(binary.NativeEndian.Uint64(b[8*i:]))
		}
		return nil
	})
	return fields, err
}

// SetLimit sets the limit of a segment, in bytes. Used and kept memory are the process's to write.
// The process obeys in its next round: memory in use stays, and that of conversations goes that nobody
// waits for.
func SetLimit(name string, bytes int64) error { return setLimit(Dir, name, bytes) }

func setLimit(dir, name string, bytes int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := checkLimit(bytes); err != nil {
		return err
	}
	f, err := open(dir, name, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("set the limit of segment %s: %w", name, err)
	}
	defer f.Close()
	if state, _ := life(dir, name, nil, new(Segment)); state == Dead {
		return fmt.Errorf("set the limit of segment %s: %w", name, ErrDead)
	}
	err = locked(f, unix.LOCK_EX, func() error {
		_, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(bytes)), 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("set the limit of segment %s: %w", name, err)
	}
	return nil
}

// life tells whether a segment's process lives, by the lock that it holds beside the segment, and notes
// the numbers that the process writes there.
func life(dir, name string, holders map[uint64]int, s *Segment) (state State, pid int) {
	s.InForce = s.Limit
	f, err := os.OpenFile(filepath.Join(dir, name+lockEnd), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Foreign, 0
	case err != nil:
		return Live, 0 // another user's, which only its process can tell more of
	}
	defer f.Close()
	// A shared lock: two tools that look at once do not take each other for the process.
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return Dead, 0
	}
	if info, err := f.Stat(); err == nil {
		pid = holders[info.Sys().(*syscall.Stat_t).Ino]
	}
	var told [toldBytes]byte
	if _, err := f.ReadAt(told[:], 0); err != nil {
		return Live, pid // it has not told yet
	}
	number := func(i int) int64 { return min(max(0, int64(binary.NativeEndian.Uint64(told[8*i:]))), LimitMax) }
	if number(0) == toldVersion {
		s.InForce, s.Lacking, s.Spare = number(1), number(2), number(3)
	}
	return Live, pid
}

// lockHolders are the processes of locks, by the inode of the locked file. Processes of other
// containers have no number here.
func lockHolders() map[uint64]int {
	data, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	holders := make(map[uint64]int)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		place := strings.Split(fields[5], ":")
		inode, err2 := strconv.ParseUint(place[len(place)-1], 10, 64)
		if err == nil && err2 == nil && pid > 0 {
			holders[inode] = pid
		}
	}
	return holders
}
