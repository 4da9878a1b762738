/*
Package checked reads the pages of a tier and judges files that fail their check.

Pages opens a file and checks it, a second time past this machine's cache if the first check fails:
one failed read proves nothing. A file that fails twice goes to quarantine. BadFiles bound the files
that a process moves there: many damaged pages at once suggest a machine that reads wrong bytes. Copies are the files of a tier that this process knows to be good.
*/
package checked
