/*
Package trial finds out whether compressed pages come back from a disk as quickly as raw ones.

A disk that gives fewer bytes than the processors decode returns compressed pages sooner, a
quicker one returns raw pages sooner. Neither the speed of a disk nor that of a decoder is known
in advance, and both share the processors. Run therefore writes a page's own rows to the disk in
both forms, and reads, checks and decodes the files as a restore does.

	result, err := trial.Run(ctx, disk, page, encode)
	if result.Pays() { … }

A Record keeps results, so that a disk is written for a trial once in a while only.
*/
package trial
