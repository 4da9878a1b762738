// Package slotfile makes the files through which the sequences of slots go between llama-server
// and this process.
//
// A [Folder] is llama-server's --slot-save-path. For each file the folder has a link, because
// llama-server accepts names without a slash only. [Files] makes files of two forms:
//
//   - a whole file, in memory while it is small, or else on a disk. Files.New returns ErrNoRoom
//     if neither has room;
//   - a [Stream], where the system allows one: its bytes are in no memory and on no disk, but
//     pass through this process while llama-server reads or writes them.
//
// A process that is killed leaves a folder, and files on a disk. The next process removes both:
// see [Folder.Sweep].
package slotfile
