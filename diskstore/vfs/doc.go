/*
Package vfs is the filesystem the page store is written against.

# Basics

FS has one method per system call the store needs; File is an open file. OS is the operating system's
filesystem, and Below the same for programs that keep all their files below one directory. Mem is a
filesystem in memory, of which a copy can be made as a power failure would leave it. Bound wraps any FS
and gives up on operations that take too long. Inject makes chosen operations of any FS fail, hang, be
watched or be counted, so that tests can put an error or a crash at every one of a workload. One suite
of tests runs over all of them.

# Guarantees

  - No method but Space and IsRAM follows a symbolic link in the last element of
    a path.
  - Open never blocks on a FIFO and never opens anything but a regular file.
  - Below reads, makes, renames, removes and touches nothing through a link in
    any element after its root, even while others change the directories: each is
    opened by descriptor, beginning at the root (openat2 with RESOLVE_BENEATH and
    RESOLVE_NO_SYMLINKS where there is one, otherwise openat with O_NOFOLLOW
    element by element). Below holds no descriptor between calls, so that a mount
    can be taken away and come back, except those of Hold.
  - Descriptors are not inherited by child processes.
  - Files and directories get exactly the mode asked for, with every umask.
  - Nothing is buffered: a Write that returned has reached the operating system,
    a Sync that returned has reached the device.

# A Mem after a crash

All synced bytes and names are there. Everything else is in pieces, each of which
survives or not, by itself, with the probability that Crash is given:

  - A file's data beyond its last Sync, in blocks of 4 KiB. The file's length may
    have grown further than its data: the gap reads as zeros or as the former
    content of the blocks. A file's times are one piece.
  - Each operation on a directory since the directory's last SyncDir: a name that
    was made, removed or replaced. A later one may survive an earlier one, in the
    same directory too, and no matter whether the file's data did. A rename within
    a directory is one piece: one of the two names is there, never both or none.
    Of a rename to another directory the two halves are two pieces: the file may
    be found under both names or under none.
  - A directory whose name is lost takes all files below with it, synced or not.
  - Locks and open files are gone.

ext4 and xfs keep the order of operations on names, and let an fsync of either directory settle a
rename; a network share and btrfs's log promise less. A store that survives this model survives all of
them. It follows Pillai et al., All File Systems Are Not Created Equal (OSDI 2014), and the crash
clones of Pebble's in-memory filesystem, and leaves out a device that forgets synced data, and a torn
sector.

# Caveats

  - With OS, elements before the last may be symbolic links; with Below, those
    above its root. The store checks its root and makes everything below it
    writable by its owner only.
  - Windows has no directory fsync and no O_NOFOLLOW; there SyncDir does nothing,
    links are refused by a check before the open, and Below is OS.
  - Physical size and owner are not known on Windows: PhysicalBytes is the
    length rounded up to 4 KiB and Owner reports false.
*/
package vfs
