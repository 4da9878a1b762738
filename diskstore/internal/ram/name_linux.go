package ram

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rowsName is the name of rows in /proc/PID/maps, on kernels that keep names of mappings.
var rowsName = []byte("kvtier: pages in memory\x00")

// nameRows names the mapping of rows. A kernel that keeps no names ignores the call.
func nameRows(rows []byte) {
	if len(rows) == 0 {
		return
	}
	_ = unix.Prctl(unix.PR_SET_VMA, unix.PR_SET_VMA_ANON_NAME, uintptr(unsafe.Pointer(&rows[0])), uintptr(len(rows)), uintptr(unsafe.Pointer(&rowsName[0])))
}
