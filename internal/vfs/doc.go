/*
Package vfs is the filesystem the page store is written against.

# Basics

FS has one method per system call the store needs; File is an open file. OS is
the operating system's filesystem. Inject wraps any FS and makes chosen
operations fail, hang or be counted, so that tests can put an error at every
operation of a workload.

# Guarantees

  - No method but Space and IsRAM follows a symbolic link in the last element of
    a path.
  - Open never blocks on a FIFO and never opens anything but a regular file.
  - Descriptors are not inherited by child processes.
  - Files and directories get exactly the mode asked for, whatever the umask.
  - Nothing is buffered: a Write that returned has reached the operating system,
    a Sync that returned has reached the device.

# Caveats

  - Elements before the last may be symbolic links. The store checks its root
    and makes everything below it writable by its owner only.
  - Windows has no directory fsync and no O_NOFOLLOW; there SyncDir does nothing
    and links are refused by a check before the open.
  - Physical size and owner are not known on Windows: PhysicalBytes is the
    length rounded up to 4 KiB and Owner reports false.
*/
package vfs
