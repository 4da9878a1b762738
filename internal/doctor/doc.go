// Package doctor looks at a machine on which a KV tier runs, or should run, and says which of
// its circumstances keep the tier from helping, with the command that cures each.
//
// A look has two halves. The first one asks the machine, through an [Environment]: the inventory of
// package machine, the installations of kvtier, directories of pages, telemetry. Questions that may
// wait are asked side by side, and each wait has a bound, so a mount that hangs delays the answer by
// one bound and costs one finding. The second half judges the answers in memory: a [Check] is a
// function of them, and of nothing else.
//
// A circumstance gets a check if one of ten users meets it, or if it explains why nothing is stored or
// restored, why pages are gone, or wrong output. The server's log and kvtier ps, why, stat and bench say the
// rest.
//
// Nothing is changed, except that an empty file is made in each directory of pages and removed, to see
// whether it can be written and to read the clock of its server. No text of a prompt is read.
package doctor
