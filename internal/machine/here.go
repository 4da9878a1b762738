package machine

import (
	"bytes"
	"cmp"
	"context"
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
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Here is the machine on which this program runs.
type Here struct{}

var _ System = Here{}

func (Here) OS() string { return runtime.GOOS }

func (Here) Account(name string) (Account, bool) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return Account{}, false
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		uid = -1
	}
	return Account{UID: uid, Name: u.Username, Home: u.HomeDir}, true
}

func (h Here) User() Account {
	a, _ := h.Account(strconv.Itoa(os.Geteuid()))
	a.UID = os.Geteuid()
	a.Home, _ = os.UserHomeDir()
	return a
}

func (Here) Variables() map[string]string { return variablesIn(os.Environ()) }

func (Here) Find(program string) (string, error) { return exec.LookPath(program) }
func (Here) Resolve(path string) (string, error) { return filepath.EvalSymlinks(path) }

const (
	outputMax = 4 << 20         // bytes of a program's output that are kept
	runMax    = 2 * time.Minute // of a program: a restart waits for the models' end
	// runGrace is the time for a program's output after its end: a child of it may have the output.
	runGrace = 250 * time.Millisecond
)

// Run returns the output, and an error with the last line that the program wrote. Root, and whoever is run as by sudo,
// runs no program that another user can change: sudo may leave the PATH of the one who asks.
func (h Here) Run(ctx context.Context, variables []string, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, runMax)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	if me := os.Geteuid(); (me == 0 || os.Getenv("SUDO_UID") != "") && cmd.Err == nil {
		path, ok := Trusted(h, me, cmd.Path)
		if !ok {
			return "", fmt.Errorf("run %s: other users can change %s, so %s does not: %w", program, cmd.Path, cmp.Or(h.User().Name, "this user"), fs.ErrPermission)
		}
		cmd.Path = path
	}
	cmd.Env = append(os.Environ(), variables...)
	cmd.WaitDelay = runGrace
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{&out, outputMax}, &limited{&errs, outputMax}
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) { // it succeeded, a child has its output
		last := cmp.Or(strings.TrimSpace(errs.String()), strings.TrimSpace(out.String()))
		return out.String(), fmt.Errorf("run %s %s: %w: %s", program, strings.Join(args, " "), err, last[strings.LastIndexByte(last, '\n')+1:])
	}
	return out.String(), nil
}

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

// A name in a directory of pages may be a FIFO, or a link of its owner's to a device: neither Read nor List waits for
// the one or follows the other.

func (Here) Read(path string, most int) ([]byte, error) {
	f, err := vfs.OS.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, 0, int64(most)))
}

func (Here) List(path string, most int) ([]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|noFollow, 0)
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

func (Here) Stat(path string) (File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return File{}, err
	}
	f := File{Mode: info.Mode(), UID: -1, Size: info.Size()}
	if uid, ok := vfs.OS.Owner(info); ok {
		f.UID = uid
	}
	return f, nil
}

func (Here) Disk(path string) (Disk, error) {
	space, err := vfs.OS.Space(path)
	if err != nil {
		return Disk{}, err
	}
	d := Disk{Total: space.Total, Free: space.Free}
	d.RAM, err = vfs.OS.IsRAM(path)
	return d, err
}

func (Here) Patched(executable string) bool {
	info, err := buildinfo.ReadFile(executable)
	return err == nil && slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == "github.com/kvtier/kvtier" })
}
