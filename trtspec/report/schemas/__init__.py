# SPDX-License-Identifier: Apache-2.0
"""The forms of saved documents, as far as a report reads them; what is beyond their bounds is refused."""
