package mounts

import "github.com/hanwen/go-fuse/v2/fuse"

// faulty consults its faults before it carries out a request. Requests without a method
// below cannot be made to fail: the page store does not need them, or they have no answer.
type faulty struct {
	fuse.RawFileSystem
	faults *faults
}

type cancel = <-chan struct{}

// unless carries a request out, unless requests of its kind fail.
func (f *faulty) unless(op Op, do func() fuse.Status) fuse.Status {
	if s := f.faults.enter(op); !s.Ok() {
		return s
	}
	return do()
}

func (f *faulty) Lookup(c cancel, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.unless(OpLookup, func() fuse.Status { return f.RawFileSystem.Lookup(c, in, name, out) })
}

func (f *faulty) GetAttr(c cancel, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.unless(OpGetAttr, func() fuse.Status { return f.RawFileSystem.GetAttr(c, in, out) })
}

func (f *faulty) SetAttr(c cancel, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.unless(OpSetAttr, func() fuse.Status { return f.RawFileSystem.SetAttr(c, in, out) })
}

func (f *faulty) Mkdir(c cancel, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.unless(OpMkdir, func() fuse.Status { return f.RawFileSystem.Mkdir(c, in, name, out) })
}

func (f *faulty) Unlink(c cancel, in *fuse.InHeader, name string) fuse.Status {
	return f.unless(OpUnlink, func() fuse.Status { return f.RawFileSystem.Unlink(c, in, name) })
}

func (f *faulty) Rmdir(c cancel, in *fuse.InHeader, name string) fuse.Status {
	return f.unless(OpRmdir, func() fuse.Status { return f.RawFileSystem.Rmdir(c, in, name) })
}

func (f *faulty) Rename(c cancel, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return f.unless(OpRename, func() fuse.Status { return f.RawFileSystem.Rename(c, in, oldName, newName) })
}

func (f *faulty) Create(c cancel, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if s := f.faults.enter(OpCreate); !s.Ok() {
		return s
	}
	s := f.RawFileSystem.Create(c, in, name, out)
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	return s
}

func (f *faulty) Open(c cancel, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s := f.faults.enter(OpOpen); !s.Ok() {
		return s
	}
	s := f.RawFileSystem.Open(c, in, out)
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	return s
}

func (f *faulty) Read(c cancel, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if s := f.faults.enter(OpRead); !s.Ok() {
		return nil, s
	}
	f.faults.link.carry(len(buf))
	return f.RawFileSystem.Read(c, in, buf)
}

func (f *faulty) Write(c cancel, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if s := f.faults.enter(OpWrite); !s.Ok() {
		return 0, s
	}
	f.faults.link.carry(len(data))
	return f.RawFileSystem.Write(c, in, data)
}

func (f *faulty) Flush(c cancel, in *fuse.FlushIn) fuse.Status {
	return f.unless(OpFlush, func() fuse.Status { return f.RawFileSystem.Flush(c, in) })
}

func (f *faulty) Fsync(c cancel, in *fuse.FsyncIn) fuse.Status {
	return f.unless(OpFsync, func() fuse.Status { return f.RawFileSystem.Fsync(c, in) })
}

func (f *faulty) OpenDir(c cancel, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.unless(OpOpenDir, func() fuse.Status { return f.RawFileSystem.OpenDir(c, in, out) })
}

func (f *faulty) ReadDir(c cancel, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.unless(OpReadDir, func() fuse.Status { return f.RawFileSystem.ReadDir(c, in, out) })
}

func (f *faulty) ReadDirPlus(c cancel, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.unless(OpReadDir, func() fuse.Status { return f.RawFileSystem.ReadDirPlus(c, in, out) })
}

func (f *faulty) FsyncDir(c cancel, in *fuse.FsyncIn) fuse.Status {
	return f.unless(OpFsyncDir, func() fuse.Status { return f.RawFileSystem.FsyncDir(c, in) })
}

func (f *faulty) StatFs(c cancel, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return f.unless(OpStatFs, func() fuse.Status { return f.RawFileSystem.StatFs(c, in, out) })
}
