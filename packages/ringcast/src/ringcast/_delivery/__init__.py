"""The hand-over of changes to the application's handler, and the policy for changes that it can't handle."""
