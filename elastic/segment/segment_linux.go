package segment

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
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

	// The file with that end has five numbers: the version of the others, the limit in force, the
	// bytes that are promised to work, those that work lacks, and those that could be given.
	toldVersion = 1
	toldBytes   = 40

	// patience is how long a lock is waited for. Processes hold it for microseconds.
	patience = 250 * time.Millisecond
	pause    = time.Millisecond

	// segmentsMax bounds a list, and namesMax the names of other users: anyone may fill /dev/shm.
	segmentsMax = 1024
	namesMax    = 1 << 16

	namesAtOnce = 512 // of a folder that are read at once
)

// List returns the segments of this machine that this user may read, by name: those of the given users,
// or of all. Files of other programs are left out: a segment has 24 bytes and a limit above zero, or a
// process that tells which limit is in force. Where there are very many, those of this user come first,
// and then those of users that have few.
func List(users ...uint32) ([]Segment, error) { return list(Dir, users...) }

func list(dir string, users ...uint32) ([]Segment, error) {
	names, err := namesOf(dir, users)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	me := uint32(os.Getuid())
	count := func(uid uint32) int {
		if uid == me {
			return 0
		}
		return len(names[uid])
	}
	byCount := func(a, b uint32) int { return cmp.Or(cmp.Compare(count(a), count(b)), cmp.Compare(a, b)) }
	holders := lockHolders()
	until := time.Now().Add(patience) // for all locks together
	var all []Segment
	for _, uid := range slices.SortedFunc(maps.Keys(names), byCount) {
		for name := range names[uid] {
			if s, ok := ofUser(dir, name, uid, holders, until); ok && len(all) < segmentsMax {
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b Segment) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// namesOf returns names of segments and their locks by the file's owner, at most segmentsMax of each.
func namesOf(dir string, users []uint32) (map[uint32]map[string]bool, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names := make(map[uint32]map[string]bool)
	me, others := uint32(os.Getuid()), 0
	for {
		entries, err := d.ReadDir(namesAtOnce)
		for _, entry := range entries {
			name := strings.TrimSuffix(entry.Name(), lockEnd)
			if !entry.Type().IsRegular() || checkName(name) != nil {
				continue
			}
			info, err := entry.Info()
			if err != nil {
				continue
			}
			uid := owner(info)
			if len(users) > 0 && !slices.Contains(users, uid) {
				continue
			}
			if len(names[uid]) == segmentsMax || others == namesMax && len(users) == 0 && uid != me {
				continue
			}
			if names[uid] == nil {
				names[uid] = make(map[string]bool)
			}
			if names[uid][name] = true; uid != me {
				others++
			}
		}
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// ofUser reads the segment of a name that is a user's.
func ofUser(dir, name string, uid uint32, holders map[file]int, until time.Time) (Segment, bool) {
	s, of, err := look(dir, name, holders, until)
	if errors.Is(err, ErrNoSegment) || err == nil && of != uid {
		s, of, err = removed(dir, name, holders)
	}
	return s, err == nil && of == uid && (s.Limit > 0 || s.InForce > 0)
}

// Get returns one segment.
func Get(name string) (Segment, error) {
	if err := checkName(name); err != nil {
		return Segment{}, err
	}
	s, _, err := look(Dir, name, lockHolders(), time.Now().Add(patience))
	if err != nil {
		return Segment{}, fmt.Errorf("segment %s: %w", name, err)
	}
	return s, nil
}

// look reads a segment and its user, and waits for its lock until a time at most.
func look(dir, name string, holders map[file]int, until time.Time) (s Segment, uid uint32, err error) {
	s.Name = name
	f, uid, err := open(dir, name, os.O_RDWR)
	if errors.Is(err, fs.ErrPermission) {
		s.ReadOnly = true
		f, uid, err = open(dir, name, os.O_RDONLY)
	}
	if err != nil {
		return s, 0, err
	}
	defer f.Close()
	// The process writes the numbers in the segment and those beside it under one lock.
	read := func() error {
		if err := s.read(f); err != nil {
			return err
		}
		s.life(dir, uid, holders)
		return nil
	}
	err = locked(f, unix.LOCK_SH, until, read)
	busy := errors.Is(err, ErrBusy)
	if busy {
		err = read() // some of the numbers may be of before
	}
	if err != nil {
		return s, uid, err
	}
	if busy && s.State == Live {
		s.State = Locked // its process may still tell numbers: those lie beside the segment
	}
	return s, uid, nil
}

// removed is a segment, and its user, of which only its process's lock is left. A lock that this user may
// not write belongs to a segment that this user may not limit.
func removed(dir, name string, holders map[file]int) (s Segment, uid uint32, err error) {
	s.Name = name
	lock := filepath.Join(dir, name+lockEnd)
	info, err := os.Lstat(lock)
	if err != nil || !info.Mode().IsRegular() || unix.Access(lock, unix.W_OK) != nil {
		return s, 0, ErrNoSegment
	}
	uid = owner(info)
	if s.life(dir, uid, holders); s.State != Live {
		return s, uid, ErrNoSegment
	}
	s.Limit, s.State = s.InForce, Deleted
	return s, uid, nil
}

// read reads the three numbers.
func (s *Segment) read(f *os.File) error {
	var b [size]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	s.Limit, s.Used, s.Kept = number(b[:], 0), number(b[:], 1), number(b[:], 2)
	s.InForce = s.Limit
	return nil
}

// number is a number of bytes. Any process may write any.
func number(b []byte, i int) int64 {
	return min(max(0, int64(binary.NativeEndian.Uint64(b[8*i:]))), LimitMax)
}

// open opens a file of 24 bytes, and returns its user. open never waits: a name may lead to a pipe.
func open(dir, name string, mode int) (f *os.File, uid uint32, err error) {
	f, err = os.OpenFile(filepath.Join(dir, name), mode|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, ErrNoSegment
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != size) {
		err = ErrNoSegment
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, owner(info), nil
}

// locked runs f with the file's lock, for which it waits until a time, and tries once.
func locked(file *os.File, how int, until time.Time, f func() error) error {
	for ; ; time.Sleep(pause) {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if err == nil {
			defer unix.Flock(int(file.Fd()), unix.LOCK_UN)
			return f()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock it: %w", err)
		}
		if time.Now().After(until) {
			return ErrBusy
		}
	}
}

// SetLimit sets the limit of a segment, in bytes. The process obeys in its next round: memory of work
// stays, and that of conversations goes that nobody waits for.
func SetLimit(name string, bytes int64) error { return setLimit(Dir, name, bytes) }

func setLimit(dir, name string, bytes int64) error {
	if err := cmp.Or(checkName(name), checkLimit(bytes)); err != nil {
		return err
	}
	if err := writeLimit(dir, name, bytes); err != nil {
		return fmt.Errorf("set the limit of segment %s: %w", name, err)
	}
	return nil
}

func writeLimit(dir, name string, bytes int64) error {
	f, uid, err := open(dir, name, os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close()
	s := Segment{Name: name}
	if s.life(dir, uid, nil); s.State == Dead {
		return ErrDead
	}
	return locked(f, unix.LOCK_EX, time.Now().Add(patience), func() error {
		_, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(bytes)), 0)
		return err
	})
}

// owner is the user of a file.
func owner(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// life tells whether the segment's process lives, by the lock that it holds beside the segment, and notes
// the numbers that it writes there. Files and processes of others than the segment's user count for
// nothing: anyone may make files here.
func (s *Segment) life(dir string, uid uint32, holders map[file]int) {
	s.State = Foreign
	f, err := os.OpenFile(filepath.Join(dir, s.Name+lockEnd), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return
	}
	stat := info.Sys().(*syscall.Stat_t)
	if !info.Mode().IsRegular() || stat.Uid != uid {
		return
	}
	// A shared lock: two tools that look at once do not take each other for the process.
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		s.State = Dead
		return
	}
	s.State = Live
	if pid := holders[file{uint64(stat.Dev), stat.Ino}]; ownedBy(pid, uid) {
		s.PID = pid
	}
	var told [toldBytes]byte
	if _, err := f.ReadAt(told[:], 0); err == nil && number(told[:], 0) == toldVersion {
		s.InForce, s.Promised, s.Lacking, s.Spare = number(told[:], 1), number(told[:], 2), number(told[:], 3), number(told[:], 4)
	}
}

// ownedBy reports whether a process is a user's.
func ownedBy(pid int, uid uint32) bool {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil && owner(info) == uid
}

// A file is known by its filesystem and its number there: each container has a /dev/shm of its own.
type file struct{ dev, inode uint64 }

// lockHolders are the processes of locks, by the locked file. Those of other containers have no number.
func lockHolders() map[file]int {
	data, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	holders := make(map[file]int)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" {
			continue
		}
		var major, minor uint32
		var inode uint64
		pid, err := strconv.Atoi(fields[4])
		if _, scanErr := fmt.Sscanf(fields[5], "%x:%x:%d", &major, &minor, &inode); err == nil && scanErr == nil && pid > 0 {
			holders[file{unix.Mkdev(major, minor), inode}] = pid
		}
	}
	return holders
}
