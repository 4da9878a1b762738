package digests

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// fileBasicInfo is FILE_BASIC_INFO. Times are in 100 ns since 1601.
type fileBasicInfo struct {
	creation, access, write, change windows.Filetime
	attributes                      uint32
	_                               uint32
}

func stateOf(f *os.File) (State, error) {
	handle := windows.Handle(f.Fd())
	var file windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(handle, &file); err != nil {
		return State{}, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	var basic fileBasicInfo
	err := windows.GetFileInformationByHandleEx(handle, windows.FileBasicInfo, (*byte)(unsafe.Pointer(&basic)), uint32(unsafe.Sizeof(basic)))
	if err != nil {
		return State{}, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	return State{
		Device:   uint64(file.VolumeSerialNumber),
		Inode:    uint64(file.FileIndexHigh)<<32 | uint64(file.FileIndexLow),
		Size:     int64(file.FileSizeHigh)<<32 | int64(file.FileSizeLow),
		Modified: basic.write.Nanoseconds(), Changed: basic.change.Nanoseconds(),
	}, nil
}
