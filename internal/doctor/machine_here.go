package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/telemetry"
)

// Here is the machine on which this program runs. state reads the counters of a directory.
func Here(state func(ctx context.Context, root string) (telemetry.State, error)) Environment {
	return here{state}
}

type here struct {
	state func(ctx context.Context, root string) (telemetry.State, error)
}

func (here) OS() string     { return runtime.GOOS }
func (here) Now() time.Time { return time.Now() }

func (here) User() Account {
	a := Account{UID: os.Geteuid()}
	if u, err := user.LookupId(strconv.Itoa(a.UID)); err == nil {
		a.Name = u.Username
	}
	a.Home, _ = os.UserHomeDir()
	return a
}

func account(u *user.User, err error) (Account, bool) {
	if err != nil {
		return Account{}, false
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		uid = -1
	}
	return Account{UID: uid, Name: u.Username, Home: u.HomeDir}, true
}

func (here) Account(name string) (Account, bool) { return account(user.Lookup(name)) }
func (here) AccountOf(uid int) (Account, bool)   { return account(user.LookupId(strconv.Itoa(uid))) }
func (here) Variables() map[string]string {
	return variablesIn(strings.Join(os.Environ(), "\x00"), "\x00")
}
func (here) Find(program string) (string, error) { return exec.LookPath(program) }
func (here) Resolve(path string) (string, error) { return filepath.EvalSymlinks(path) }
func (h here) Telemetry(ctx context.Context, root string) (telemetry.State, error) {
	return h.state(ctx, root)
}

// outputMax bounds the output of a program that is read, in bytes.
const outputMax = 4 << 20

func (here) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = grace / 2 // a child of the program may have its output
	var out bytes.Buffer
	cmd.Stdout = &limited{&out, outputMax}
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("run %s: %w", program, err)
	}
	return out.String(), nil
}

// limited keeps the beginning of a text.
type limited struct {
	w    *bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.w.Write(p[:n])
	l.left -= n
	return len(p), nil
}

// open opens without waiting and follows no link: a name in a directory of pages may be a FIFO,
// or a link of its owner's to a device.
func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|noFollow, 0)
}

func (here) Read(path string, most int) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, &fs.PathError{Op: "read", Path: path, Err: vfs.ErrNotRegular})
	}
	return io.ReadAll(io.LimitReader(f, int64(most)))
}

func (here) List(path string, most int) ([]string, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	slices.Sort(names)
	return names, err
}

func (here) Stat(path string) (File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return File{}, err
	}
	f := File{Mode: info.Mode(), UID: -1}
	if uid, ok := vfs.OS.Owner(info); ok {
		f.UID = uid
	}
	return f, nil
}

func (here) Disk(path string) (Disk, error) {
	space, err := vfs.OS.Space(path)
	if err != nil {
		return Disk{}, err
	}
	d := Disk{Total: space.Total, Free: space.Free}
	d.Inodes, d.InodesFree = inodes(path)
	d.RAM, err = vfs.OS.IsRAM(path)
	return d, err
}

func (here) Probe(dir string) (p Probe, err error) {
	name := filepath.Join(dir, ".kvtier-doctor-"+rand.Text())
	p.Before = time.Now()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	info, err := f.Stat()
	if err != nil {
		return p, err
	}
	p.Modified, p.After = info.ModTime(), time.Now()
	return p, nil
}

// programMax bounds the read of a program, in bytes.
const programMax = 512 << 20

func (h here) Build(executable string) (b Build, err error) {
	info, err := buildinfo.ReadFile(executable)
	if err != nil {
		return b, err
	}
	for _, m := range info.Deps {
		b.Patched = b.Patched || m.Path == "github.com/kvtier/kvtier"
	}
	if !b.Patched {
		return b, nil
	}
	text, err := readLinked(h, executable, programMax)
	if err == nil {
		b.Ops = opNames(text)
	}
	return b, err
}

// Model does not use upstream's reader, which a hostile file ends together with the program.
func (here) Model(path string) (string, error) {
	f, err := open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fs.ErrInvalid)
	}
	return sizing.ReadArchitecture(f, info.Size())
}

func (here) Installed(ctx context.Context) ([]install.Status, error) {
	if runtime.GOOS == "windows" {
		return nil, nil
	}
	return install.Here().Status(ctx, install.Choice{}, os.Getenv("OLLAMA_HOST"))
}
