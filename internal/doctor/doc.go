// Package doctor looks at a machine on which a KV tier runs, or should run, and says which of
// its circumstances keep the tier from helping, with the command that cures each.
//
// A look has two halves. The first one asks the machine, through an [Environment]: processes,
// systemd, Docker, mounts, directories, models, telemetry. Questions that may wait are asked side
// by side, and each wait has a bound, so a mount that hangs delays the answer by one bound and
// costs one finding. The second half judges the answers in memory: a [Check] is a function of
// them, and of nothing else.
//
// Nothing is changed, except that a file is written to each directory of pages and removed, to
// measure the disk and to read the clock of its server. No text of a prompt is read.
package doctor
