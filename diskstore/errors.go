package diskstore

import "errors"

// Errors of opening a store. They say that the configuration is wrong or
// unsafe; nothing has been written when they are returned.
var (
	// ErrOptions reports an Options value that cannot work.
	ErrOptions = errors.New("diskstore: bad options")

	// ErrRootSymlink reports a root that is a symbolic link: whoever can
	// change the link can read or replace the prompts below it.
	ErrRootSymlink = errors.New("diskstore: root is a symbolic link")

	// ErrRootNotDir reports a root that exists and is not a directory.
	ErrRootNotDir = errors.New("diskstore: root is not a directory")

	// ErrRootOwner reports a root that belongs to another user.
	ErrRootOwner = errors.New("diskstore: root belongs to another user")

	// ErrRootMode reports a root that its group or everybody may write to.
	ErrRootMode = errors.New("diskstore: root is writable by group or others")
)

// Errors of a page. None of them is ever a reason to fail a request: the
// caller computes the page again.
var (
	// ErrNotFound reports that no tier holds the page.
	ErrNotFound = errors.New("diskstore: page not found")

	// ErrDamaged reports a page whose bytes are not the bytes that were
	// written. The file has been moved to quarantine.
	ErrDamaged = errors.New("diskstore: page is damaged")

	// ErrMismatch reports a page that is well formed but is not what was asked
	// for: another fingerprint, parent, position, tokens or sections.
	ErrMismatch = errors.New("diskstore: page is not the one asked for")

	// ErrInvalidPage reports arguments that cannot describe a page.
	ErrInvalidPage = errors.New("diskstore: invalid page")
)

// ErrNotPlaced reports a page that ReadPlaced has read and whose rows cannot be
// used where they lie: it is compressed, in the remote tier, or in no file of
// the operating system.
var ErrNotPlaced = errors.New("diskstore: page cannot be used in place")

// Errors of a tier or of the store as a whole.
var (
	// ErrRootMissing reports a remote root that does not exist. The store never
	// creates it, so that a mount point without its mount is not filled.
	ErrRootMissing = errors.New("diskstore: root does not exist")

	// ErrRootChanged reports a root in whose place another directory is now, which
	// holds no pages: what was mounted there is gone.
	ErrRootChanged = errors.New("diskstore: root is not the directory it was")

	// ErrNotShared reports a remote root that another machine writes to, on a
	// filesystem whose locks do not keep the two apart. It is read all the same.
	ErrNotShared = errors.New("diskstore: root is written by another machine")

	// ErrNoSpace reports that a page does not fit, and that room was not made in
	// time.
	ErrNoSpace = errors.New("diskstore: no space for the page")

	// ErrWriteCap reports that as much as Options.WritePerDay allows has been
	// written to the local tier on this UTC day.
	ErrWriteCap = errors.New("diskstore: the day's writes are used up")

	// ErrTierDown reports a tier whose breaker is open: it failed or hung
	// lately and is left alone until its backoff has passed.
	ErrTierDown = errors.New("diskstore: tier is down")

	// ErrTierTimeout reports an operation that a tier did not finish in time.
	ErrTierTimeout = errors.New("diskstore: tier did not answer in time")

	// ErrLocked reports that another process is collecting this tier.
	ErrLocked = errors.New("diskstore: another process is collecting")

	// ErrClosed reports use of a store after Close.
	ErrClosed = errors.New("diskstore: store is closed")
)
