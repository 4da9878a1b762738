package tier

import "errors"

// Errors of opening a store. They say that the configuration is wrong or
// unsafe; nothing has been written when they are returned.
var (
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
)

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
