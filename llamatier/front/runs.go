//go:build unix

package front

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/jsonfile"
	"github.com/kvtier/kvtier/internal/proc"
)

// Limits of the plain mode.
const (
	crashesMax  = 3                // bad ends in a row after which the real server runs alone
	crashWindow = 10 * time.Minute // in which they began
	plainFor    = time.Hour        // for which the real server runs alone

	runsMax       = 64
	runsBytesMax  = 64 << 10
	runsVersion   = 1
	runIDBytesMax = 200
	modelBytesMax = 64
	clockSlack    = time.Minute
)

// errPlain reports that daemons of a model have ended badly again and again.
var errPlain = fmt.Errorf("it or its engine died %d times within %s; the real server runs without it for %s", crashesMax, crashWindow, plainFor)

// runs remembers the daemons that have not ended in order, in a small file in the local root.
// A daemon that died, or whose engine died, has left its entry there.
type runs struct {
	path  string
	now   func() time.Time
	id    string // of this process; "" where processes have none
	alive func(id string) (alive, known bool)
}

// runEntry is one daemon, or a model that runs without one until some time.
type runEntry struct {
	Model string `json:"model"`           // the SHA-256 of its path
	Began int64  `json:"began"`           // Unix seconds
	ID    string `json:"id,omitempty"`    // of the process
	Plain bool   `json:"plain,omitempty"` // the model runs without a daemon since Began
}

type runsFile struct {
	Version int        `json:"version"`
	Runs    []runEntry `json:"runs"`
}

func newRuns(dir string) *runs {
	return &runs{path: filepath.Join(dir, "llama-server.json"), now: time.Now, id: processID(os.Getpid()), alive: processAlive}
}

func modelKey(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:])
}

// begin notes that a daemon of a model has begun. It returns errPlain if too many have died.
func (r *runs) begin(model string) error {
	return r.change(func(all []runEntry) ([]runEntry, error) {
		key, now := modelKey(model), r.now()
		died := 0
		for _, e := range all {
			switch {
			case e.Model != key:
			case e.Plain:
				return all, errPlain
			case r.died(e) && now.Sub(time.Unix(e.Began, 0)) < crashWindow:
				died++
			}
		}
		e := runEntry{Model: key, Began: now.Unix(), ID: r.id}
		if died < crashesMax {
			return append(all, e), nil
		}
		e.ID, e.Plain = "", true
		return append(r.without(all, key), e), errPlain
	})
}

// inOrder notes that the daemon of a model ends in order.
func (r *runs) inOrder(model string) error {
	return r.change(func(all []runEntry) ([]runEntry, error) {
		return r.without(all, modelKey(model)), nil
	})
}

// without returns the entries without this daemon and those of its model that died.
func (r *runs) without(all []runEntry, key string) []runEntry {
	return slices.DeleteFunc(all, func(e runEntry) bool {
		return e.Model == key && !e.Plain && (e.ID == r.id || r.died(e))
	})
}

// died reports whether a daemon has ended, and has not said so. Daemons of an earlier boot, and
// of other containers, are not known to have died.
func (r *runs) died(e runEntry) bool {
	alive, known := r.alive(e.ID)
	return known && !alive
}

// change replaces the file. Another daemon may do the same.
func (r *runs) change(f func([]runEntry) ([]runEntry, error)) error {
	if r.id == "" {
		return nil
	}
	lock, err := os.OpenFile(strings.TrimSuffix(r.path, ".json")+"-runs.lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	all, result := f(r.read())
	slices.SortStableFunc(all, func(a, b runEntry) int { return cmp.Compare(b.Began, a.Began) })
	data, err := json.Marshal(runsFile{runsVersion, all[:min(len(all), runsMax)]})
	if err != nil {
		return err
	}
	return errors.Join(result, jsonfile.Replace(r.path, data))
}

// read returns the entries that still count. A file that cannot be used has none.
func (r *runs) read() []runEntry {
	var file runsFile
	if err := jsonfile.Read(r.path, runsBytesMax, &file); err != nil || file.Version != runsVersion || len(file.Runs) > runsMax {
		return nil
	}
	now := r.now()
	return slices.DeleteFunc(file.Runs, func(e runEntry) bool {
		age := now.Sub(time.Unix(e.Began, 0))
		return len(e.Model) > modelBytesMax || len(e.ID) > runIDBytesMax || age < -clockSlack || age >= plainFor
	})
}

// processID names a process: the boot, the namespace of process numbers, the number, and the
// clock ticks from the boot to its start. It is empty where the system does not tell.
func processID(pid int) string {
	boot, bootErr := proc.Boot()
	space, spaceErr := os.Readlink("/proc/self/ns/pid")
	stat, statErr := proc.Read(pid)
	if errors.Join(bootErr, spaceErr, statErr) != nil || stat.Ended() {
		return ""
	}
	return fmt.Sprintf("%s %s %d %d", boot, space, pid, stat.Start)
}

// processAlive reports whether the process of an id runs; not known for one of another boot or namespace.
func processAlive(id string) (alive, known bool) {
	own, parts := strings.Fields(processID(os.Getpid())), strings.Fields(id)
	if len(parts) != 4 || len(own) != 4 || own[0] != parts[0] || own[1] != parts[1] {
		return false, false
	}
	pid, err := strconv.Atoi(parts[2])
	if err != nil || pid <= 0 {
		return false, false
	}
	return processID(pid) == id, true
}
