package dir

import (
	"path/filepath"
	"strings"
)

/*
A file that is removed or replaced while a process has it open must stay readable. An NFS
client renames such a file, in its directory, to ".nfs" and a number, and removes it when it is
closed: a silly rename. A client that dies leaves the file behind.

Such a file is a temporary file of an unknown process. A name that nobody looks up has no
reader but those that have the file open; when the file is removed under them, they get
vfs.IsStale errors, which are misses.
*/

// isSilly reports whether an NFS client gives such a name to a file that is removed while
// open: ".nfs" and hexadecimal digits, on macOS and the BSDs with dots between.
func isSilly(base string) bool {
	number, ok := strings.CutPrefix(base, ".nfs")
	return ok && number != "" && strings.Trim(number, "0123456789abcdefABCDEF.") == ""
}

// TempID returns the id of the process to which a temporary file belongs, and whether the file
// is that process's lock. The id of a file after a silly rename is the file's own name, because
// its process is not known. TempID returns false for the name of no temporary file.
func TempID(base string) (id string, lock, ok bool) {
	if id, ok := strings.CutSuffix(base, LockExt); ok {
		return id, true, true
	}
	if isSilly(base) {
		return base, false, true
	}
	id, _, ok = strings.Cut(base, "-")
	return id, false, ok && strings.HasSuffix(base, TmpExt)
}

// sweepSilly removes a file after a silly rename that has not changed for OrphanAge. The time
// of a page is that of its last use.
func (d *tempDir) sweepSilly(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reach.learnLocks() == nil {
		d.sweepOldLocked(filepath.Base(path), &TempFiles{Paths: []string{path}})
	}
}
