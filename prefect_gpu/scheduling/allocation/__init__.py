"""Who starts now, and for whom are devices kept?"""
